"""`ask` and `chat`: a served model is asked, and its answer shown as it comes."""
