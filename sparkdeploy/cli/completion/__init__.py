"""Names complete: what may stand where the cursor is, without loading the commands themselves."""
