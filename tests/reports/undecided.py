"""Public bug reports that no test decides, each with the reason."""

REPORTS = 42  # in the collection

UNDECIDED = {
    "BR-44": "MIG: only a driver with slices tells their memory and share of a chip; a slice is refused",
    "BR-50": "Ascend: a machine here has NVIDIA cards or none; another accelerator is taken for a CPU",
    "BR-51": "Apple: as above; a Mac is planned as a CPU in float32",
    "BR-60": "nodes with different numbers of cards: one node is planned, a script for several is only checked",
}
