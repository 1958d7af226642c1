"""Write what is generated again, or, with ``--check``, name what is stale and end with 1."""

import sys

from .pages import STANDS_IN, stale

if __name__ == "__main__":
    found = stale()
    if "--check" not in sys.argv[1:]:
        for path, text in found.items():
            path.write_text(text, encoding="utf-8")
    verb = "is stale" if "--check" in sys.argv[1:] else "written"
    sys.stdout.writelines(f"{path.relative_to(STANDS_IN)} {verb}\n" for path in found)
    sys.exit("--check" in sys.argv[1:] and bool(found))
