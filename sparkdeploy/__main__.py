"""`python -m sparkdeploy`."""

from sparkdeploy.cli.start import main

if __name__ == "__main__":
    main()
