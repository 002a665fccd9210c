"""Users' code by name: ``package.module:name``, imported when it is needed."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from dsec.errors import DsecError, StageError
from dsec.runtime import failures

__all__ = ["resolve"]


def resolve(uses: str, what: str) -> Any:
    """What ``uses`` names.

    Parameters
    ----------
    uses
        ``package.module:name``; the name may have dots.
    what
        What it should be, for messages: ``agent``, ``body``.

    Raises
    ------
    StageError
        If the module can't be imported, has no such name, or is a script or notebook.
    """
    module, _, path = uses.partition(":")
    if module == "__main__":
        raise StageError(f"{what} {uses} lives in a script or notebook", hint="put it in a file: %%writefile name.py")
    found = _imported(module, what)
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, vars(found), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"{what} is written package.module:name"
            raise StageError(f"{module} has no {path!r}", hint=hint)
        found = getattr(found, part)
    if not callable(found):
        raise StageError(f"{what} {uses} can't be called", hint="name a function or a class")
    return found


def _imported(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except DsecError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            hint = "modules are found from the project root"
            raise StageError(f"{what}: there is no module {module!r}", hint=hint) from None
        raise failures.failed(f"importing {module}", error) from error
    except (Exception, SystemExit) as error:
        raise failures.failed(f"importing {module}", error) from error
