"""`python -m sparkdeploy`."""

from sparkdeploy.cli.main import main

if __name__ == "__main__":
    main()
