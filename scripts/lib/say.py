"""The messages of the scripts in Python, and the ways they end, as scripts/lib/say has them."""
import sys
from pathlib import Path

SCRIPT = Path(sys.argv[0]).name


def say(message):
    """Prints a line with the name of the script on standard error."""
    print(f"{SCRIPT}: {message}", file=sys.stderr)


def fail(message, status=1):
    """Ends the script with a message."""
    say(message)
    sys.exit(status)


def refuse(words):
    """Ends the script: the first of these arguments is wrong."""
    fail(f"unexpected argument '{words[0]}' (scripts/{SCRIPT} --help)", 2)


def cannot_run(why):
    """Ends the script: this machine cannot run it."""
    fail(f"not possible here: {why}", 77)


def show_help(text):
    """Ends the script with the text of its head."""
    print(text.strip())
    sys.exit(0)
