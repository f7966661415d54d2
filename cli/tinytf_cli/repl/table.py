"""All verbs, in the order in which help lists them."""

from tinytf_cli.repl.keeping import KEEPING
from tinytf_cli.repl.lexicon import Verb
from tinytf_cli.repl.looking import LOOKING
from tinytf_cli.repl.moving import MOVING
from tinytf_cli.repl.stopping import STOPPING
from tinytf_cli.repl.without import without

VERBS: dict[str, Verb] = {one.name: one for one in (*MOVING, *LOOKING, *STOPPING, without, *KEEPING)}
