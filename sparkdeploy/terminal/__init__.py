"""What a person sees: the printer, progress, tables, a full screen, text that is safe to show."""
