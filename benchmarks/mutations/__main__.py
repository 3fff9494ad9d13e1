"""``python -m benchmarks.mutations [names...]``: plant faults in copies of the sources, and report which tests fail."""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import about
from benchmarks.markdown import table
from benchmarks.mutations.mutation import Mutation, load_mutations
from benchmarks.mutations.trial import TIME_LIMIT, Outcome, TrialError, copied_checkout, run_tests, try_mutation
from benchmarks.results import load, record
from evorl.config.names import no_such

FAST = 60.0  # seconds


def trials(
    mutations: Sequence[Mutation], num_jobs: int, time_limit: float, check: bool
) -> Iterator[tuple[Mutation, Outcome]]:
    """Yield the outcome of each mutation, in order; each job has a copy of the checkout.

    Raises:
        TrialError: with ``check``, a test fails without any mutation.
    """
    with ExitStack() as stack:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for _ in range(num_jobs):
            copies.put(stack.enter_context(copied_checkout()))
        if check:
            check_tests(mutations, copy := copies.get())
            copies.put(copy)

        def run(mutation: Mutation) -> Outcome:
            copy = copies.get()
            try:
                return try_mutation(mutation, copy, time_limit)
            finally:
                copies.put(copy)

        pool = stack.enter_context(ThreadPoolExecutor(num_jobs))
        yield from zip(mutations, pool.map(run, mutations), strict=True)


def check_tests(mutations: Sequence[Mutation], copy: Path) -> None:
    """Raise ``TrialError`` if a test of the mutations fails in a copy without any mutation."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    outcome = run_tests(copy, tests, time_limit=TIME_LIMIT * len(mutations))
    if outcome.caught or outcome.by:
        raise TrialError(f"tests fail without any mutation ({outcome.by}): fix them first.")


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """Return the numbers of mutations caught, and caught within a minute, as a sentence."""
    num, caught = len(outcomes), [outcome for outcome in outcomes.values() if outcome.caught]
    fast = sum(outcome.seconds <= FAST for outcome in caught)
    return f"{len(caught)} of {num} caught ({len(caught) / num:.0%}), {fast} within a minute ({fast / num:.0%})"


def row_of(mutation: Mutation, outcome: Outcome) -> list[str]:
    """Return the cells of a mutation in the table."""
    verdict = "caught" if outcome.caught else "**not caught**"
    return [mutation.name, mutation.fault, verdict, outcome.by, f"{outcome.seconds:.0f} s"]


def record_outcomes(mutations: Mapping[str, Mutation], outcomes: Mapping[str, Outcome]) -> None:
    """Record the outcomes, and keep recorded ones of other mutations that still exist."""
    recorded = {trial["name"]: trial for trial in load("mutations").get("all", {"trials": []})["trials"]}
    for name, x in outcomes.items():
        seconds = round(x.seconds, 1)
        recorded[name] = {"name": name, "fault": mutations[name].fault, "caught": x.caught, "by": x.by}
        recorded[name]["seconds"] = seconds
    trials = [recorded[name] for name in mutations if name in recorded]
    record("mutations", "all", {**about(), "command": "python -m benchmarks.mutations --record", "trials": trials})


def main(arguments: Sequence[str] | None = None) -> int:
    mutations = load_mutations()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="mutations; all by default, see --list")
    parser.add_argument("--jobs", type=int, default=1, help="number of mutations tried in parallel (default 1)")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests, and try none")
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT, help="seconds per mutation (default %(default)g)"
    )
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a mutation first")
    parser.add_argument("--record", action="store_true", help="record the outcomes in benchmarks/results")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in mutations]
    if unknown:
        parser.error(no_such("mutation", unknown[0], mutations))
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}.")
    chosen = [mutations[name] for name in options.names or mutations]
    if options.list:
        print(table(["mutation", "fault", "tests"], ([x.name, x.fault, "<br>".join(x.tests)] for x in chosen)), end="")
        return 0
    outcomes, rows = {}, []
    for mutation, outcome in trials(chosen, options.jobs, options.time_limit, not options.unchecked):
        outcomes[mutation.name] = outcome
        rows.append(row_of(mutation, outcome))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
        if options.record:  # after each mutation, so that an interrupted run loses none
            record_outcomes(mutations, outcomes)
    print(table(["mutation", "fault", "", "by", "time"], rows), end="")
    print(f"\n{summary(outcomes)}")
    return int(not all(outcome.caught for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
