"""All verbs, in the order in which help lists them."""

from tinytf_cli.repl.keeping import KEEPING
from tinytf_cli.repl.looking import LOOKING
from tinytf_cli.repl.moving import MOVING
from tinytf_cli.repl.stopping import STOPPING
from tinytf_cli.repl.verbs import Verb

VERBS: dict[str, Verb] = {one.name: one for one in (*MOVING, *LOOKING, *STOPPING, *KEEPING)}
