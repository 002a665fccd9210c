"""``python -m dsec``: the command line where no script is on the path."""

from dsec.cli.main import main

if __name__ == "__main__":
    main()
