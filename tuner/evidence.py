"""What an attempt shows, read one thing at a time: where it ended, what it took, what its log says."""

from __future__ import annotations

import re
import signal

from tuner.kinds import Flag, Phase
from tuner.measured import CompileReport, PhaseRecord
from tuner.protocol import Attempt, Failure

_COMPLAINT = re.compile(
    r"""
    out[ ]of[ ]memory | outofmemory | out_of_memory | \boom\b
    | bad_?alloc\b | \bmemoryerror\b | memoryallocation | alloc_failed | \benomem\b
    | \b(not[ ]enough|insufficient|no[ ]more|low[ ]on|short[ ]of|lack[ ]of|ran[ ]out[ ]of)[ ]
      ((gpu|device|host|video|free)[ ])?memory
    | memory[ ](is[ ])?(exhausted|pressure)
    | \b(cannot|can't|can[ ]not|could[ ]not|couldn't|unable[ ]to|fail(ed|s|ure)?[ ]to|tried[ ]to)[ ]
      (re)?(allocate|reserve|get|obtain|grow)\b.*(memory|\d[ ]?([kmgt]i?b|bytes)\b)
    | alloc(?!_conf)\w*\b.*\b(fail(ed|s|ure)?|refused|denied|exceed(ed|s)?)\b
    | \b(fail(ed|s|ure)?|refused)\b.*\balloc(at)?(?!_conf)\w*
    | allocator\b.*\d[ ]?([kmgt]i?b|bytes)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""What allocators say (torch, CUDA, cuBLAS, C++, the host); never what merely names an allocation."""


_NOT_MEMORY = re.compile(
    r"\b(import|modulenotfound)error\b | static[ ]tls | \b(ports?|sockets?|pty|pseudo-?terminals?)\b",
    re.IGNORECASE | re.VERBOSE,
)
"""What is refused besides memory, in the same words: a library that cannot be loaded, a port."""


MOSTLY = 0.5
"""Of the matrix products and attentions of the chosen modules in one forward, the share that may run eager."""
HEAD = 1
"""The model's last product, which is compiled in the scope of a whole model whose layers are not."""


def memory_complaint(text: str) -> str | None:
    """Return the last line of `text` in which an allocator complains; None: there is none.

    Indented lines are passed over: they are the source lines of a traceback, and say nothing of this run.
    """
    said = [line.rstrip() for line in text.splitlines() if not line.startswith((" ", "\t"))]
    complaints = [line for line in said if _COMPLAINT.search(line) and not _NOT_MEMORY.search(line)]
    return complaints[-1][:200] if complaints else None


def last_line(text: str) -> str:
    """Return the last line of `text` that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "the log is empty"


def messages(failure: Failure) -> str:
    """Return what the exception, and those it hides, said."""
    return f"{failure.traceback}\n{failure.detail}"


def phase_of(attempt: Attempt) -> Phase:
    """Return the phase in which it ended, as far as the events tell."""
    return attempt.events[-1].phase if attempt.events else Phase.START


def where(attempt: Attempt) -> str:
    """Return ``steady, after step 5``, or ``longest_batch, in an evaluation``, for a sentence."""
    step = attempt.events[-1].step if attempt.events else None
    if attempt.events and phase_of(attempt) is Phase.LONGEST_BATCH and attempt.events[-1].note:
        return f"{phase_of(attempt)}, {attempt.events[-1].note}"
    return phase_of(attempt) if step is None else f"{phase_of(attempt)}, after step {step}"


def signal_of(attempt: Attempt) -> int | None:
    """Return the signal that ended it, a shell's exit status ``128 + signal`` included."""
    code = attempt.exit_code
    if attempt.exit_signal is None and code is not None and 128 < code < 128 + signal.NSIG:
        return code - 128
    return attempt.exit_signal


def how_it_ended(attempt: Attempt) -> str:
    """Return what its end looked like from outside, where there is no result."""
    number = signal_of(attempt)
    if number is None:
        return f"ended with exit status {attempt.exit_code} in {where(attempt)}, {attempt.result_error or 'no result'}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"killed by {name} in {where(attempt)}"


def peak_device_bytes(attempt: Attempt) -> int | None:
    """Return the most memory that the trial took, in any phase, whoever saw it; None: nobody did."""
    return max(_peaks(attempt).values(), default=None)


def peak_phase(attempt: Attempt) -> Phase | None:
    """Return the phase in which it took most; the first of equals."""
    peaks = _peaks(attempt)
    return max(peaks, key=lambda phase: peaks[phase], default=None)


def _peaks(attempt: Attempt) -> dict[Phase, int]:
    peaks = dict.fromkeys(Phase, 0) | attempt.device_peaks
    for record in attempt.result.phases if attempt.result else ():
        peaks[record.phase] = phase_device_bytes(attempt, record) or 0
    return {phase: size for phase, size in peaks.items() if size}


def phase_device_bytes(attempt: Attempt, record: PhaseRecord) -> int | None:
    """Return the most memory that the trial took in the phase of `record`; None: nobody saw it.

    On a card a worker sees all that is in use, a desktop's share included: the parent's samples,
    less the base line, go before its figure. Where there is none the base line of the launch is taken off.
    """
    sampled, own = attempt.device_peaks.get(record.phase), record.device_bytes
    if attempt.request.device_type == "cpu":
        return max(sampled or 0, own or 0) or None
    if sampled is not None or own is None:
        return sampled
    return max(0, own - (attempt.request.base_line_bytes or 0))


def compile_fault(report: CompileReport, *, routed: bool = False) -> str | None:
    """Return one sentence that says what was not compiled though it was asked for; None: all was.

    Args:
        routed: the model is a mixture of experts, whose experts may run one by one.
    """
    if report.graphs == 0:
        return "compile was asked for, and no graph was produced"
    if report.compiled_modules < report.chosen_modules:
        after = f" after the recompile limit was hit{_at_step(report)}" if report.recompile_limit_hit else ""
        count = f"compiled {report.compiled_modules} of {report.chosen_modules} chosen modules"
        return f"{count}, the rest ran eager{after}"
    if report.recompile_limit_hit:
        return f"the recompile limit was hit{_at_step(report)}, and calls past it ran eager"
    if report.eager_ops and not report.graph_breaks:
        # dynamo skipped a frame and said nothing: half a model may be eager behind one compiled call.
        return f"{report.eager_ops} matrix products or attentions ran outside what is compiled, without a graph break"
    return _mostly_eager(report, routed)


def _mostly_eager(report: CompileReport, routed: bool) -> str | None:
    """With graph breaks it is no fault that something runs eager; that most of the work does, is.

    Of a mixture of experts only that nothing but the head is compiled: a loop over experts breaks
    the graph, and with all else compiled most products, one expert's each, are still eager.
    """
    if not report.eager_ops or report.compiled_ops is None:
        return None
    products = report.eager_ops + report.compiled_ops
    if report.compiled_ops > HEAD if routed else report.eager_ops <= MOSTLY * products:
        return None
    return f"{report.eager_ops} of {products} matrix products and attentions ran eager, between graph breaks"


def _at_step(report: CompileReport) -> str:
    return "" if report.recompile_limit_step is None else f" at step {report.recompile_limit_step + 1}"


def flags_of(attempt: Attempt) -> tuple[Flag, ...]:
    """Return the worker's flags, and those that the parent knows of."""
    flags = list(attempt.result.flags) if attempt.result else []
    phases = attempt.result.phases if attempt.result else ()
    if any(record.alloc_retries or record.ooms for record in phases if record.phase is Phase.STEADY):
        flags.append(Flag.TIGHT)
    if attempt.request.emulated:
        flags.append(Flag.EMULATED)
    if attempt.shared_card:
        flags.append(Flag.SHARED_CARD)
    return tuple(dict.fromkeys(flags))
