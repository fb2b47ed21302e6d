"""An evening's measurements: recipes served and measured one after the other, to a report."""
