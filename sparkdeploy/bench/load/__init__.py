"""Load as users bring it: requests at their own moments, whoever still waits."""
