"""Reads other people's scripts and configs: what a job does, what is odd about it, and the job as a request of ours."""

from swift_autobatch.adopt.found import Adopted, Finding
from swift_autobatch.adopt.read import read

__all__ = ["Adopted", "Finding", "read"]
