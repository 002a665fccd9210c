"""Ready-made stage bodies that plans name: ``dsec.stages:rollout`` and its siblings.

Belongs here: bodies, each a function of a context and its inputs. Never here: scheduling, keys, Dask.
What a plan may say about each stands in `dsec.core.bodies`, so that keying one imports nothing of this.
"""

from dsec.stages.evaluate import evaluate
from dsec.stages.fuse import fuse
from dsec.stages.init import init_agent, init_env
from dsec.stages.learn import learn
from dsec.stages.rollout import rollout
from dsec.stages.score import score
from dsec.stages.table import table

__all__ = ["evaluate", "fuse", "init_agent", "init_env", "learn", "rollout", "score", "table"]
