"""Machines like this one but for one thing: more or fewer cards, another card, more host RAM."""

from __future__ import annotations

from dataclasses import replace

from swift_autobatch.interconnect import assumed_links, row_gpu
from swift_autobatch.records import Facts, Recipe
from swift_autobatch.tables import GpuRow, gpus
from swift_autobatch.units import GIB, MIB


def with_ram(facts: Facts, ram_bytes: int) -> Facts:
    """The same machine with ``ram_bytes`` of host RAM, all of it free."""
    host = replace(facts.machine.host, ram_total_bytes=ram_bytes, ram_budget_bytes=ram_bytes)
    return replace(facts, machine=replace(facts.machine, host=host))


def with_software(facts: Facts, distribution: str, version: str) -> Facts:
    """The same machine with a package installed."""
    software = replace(facts.machine.software, versions={**facts.machine.software.versions, distribution: version})
    return replace(facts, machine=replace(facts.machine, software=software))


def fewer_cards(facts: Facts, count: int) -> Facts:
    """The same machine of which a plan uses the first ``count`` cards; the host stays whole."""
    machine = facts.machine
    links, link = (machine.links, machine.link_gb_s) if count > 1 else ("none", None)
    return replace(
        facts, machine=replace(machine, gpus=machine.gpus[:count], processes=count, links=links, link_gb_s=link)
    )


def as_decided(facts: Facts, recipe: Recipe) -> Facts:
    """The same machine with as many of its cards as the recipe's plan uses."""
    world = (recipe.candidate or {}).get("world", 0)
    return fewer_cards(facts, world) if 0 < world < len(facts.machine.gpus) else facts


def with_cards(facts: Facts, count: int) -> Facts:
    """The same machine with ``count`` cards like its first, host RAM and cores in proportion, linked as it is.

    Where it has one card, the link is what such cards are usually sold with.
    """
    machine = facts.machine
    first, grown = machine.gpus[0], count / len(machine.gpus)
    host = replace(
        machine.host,
        cpu_cores=max(1, round(machine.host.cpu_cores * grown)),
        ram_total_bytes=round(machine.host.ram_total_bytes * grown),
        ram_budget_bytes=round(machine.host.ram_budget_bytes * grown),
        gflops=machine.host.gflops * grown,
    )
    links, link = machine.links, machine.link_gb_s
    row = gpus().get(first.card or "")
    if count == 1:
        links, link = "none", None
    elif links == "none" and row is not None:
        links, link = assumed_links(row, count)
    elif links == "none":
        links, link = "pcie", first.pcie_gb_s
    cards = tuple(replace(first, index=index) for index in range(count))
    return replace(facts, machine=replace(machine, gpus=cards, processes=count, host=host, links=links, link_gb_s=link))


def with_card(facts: Facts, row: GpuRow) -> Facts:
    """The same machine with other cards, free but for what the driver keeps, linked as such cards usually are."""
    machine = facts.machine
    total, old = row.memory_mib * MIB, machine.gpus[0]
    free = total - min(old.total_bytes - old.free_bytes, GIB // 2)
    card = row_gpu(row, index=0, name=row.name, uuid=None, total_bytes=total, free_bytes=free)
    count = len(machine.gpus)
    links, link = assumed_links(row, count)
    cards = tuple(replace(card, index=index) for index in range(count))
    return replace(facts, machine=replace(machine, gpus=cards, links=links, link_gb_s=link))
