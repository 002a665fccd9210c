"""What users' code is, read from its sources: fingerprints, signatures, bundles.

Here belongs everything that looks at users' source files. Nothing here ever imports users' code, numpy or torch: a run
whose calls are all in the store passes through this layer, and must be done in the blink of an eye.
"""

from dsec.code.fingerprint import Fingerprint, Project, changes
from dsec.code.problem import CodeProblem
from dsec.code.signature import Parameter, Signature

__all__ = ["CodeProblem", "Fingerprint", "Parameter", "Project", "Signature", "changes"]
