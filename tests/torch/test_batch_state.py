"""The state of a batch: which calls may follow which, without a model."""

import copy
import pickle

import pytest

from clipsilon.torch.batch_state import BatchState, Phase

INTERRUPTED = "A step was interrupted"
CONTEXTS = ("checking", "adding", "releasing")


def add(state, rows=3):
    with state.adding(rows) as is_first:
        assert state.phase is Phase.ADDING
    return is_first


def release(state):
    with state.releasing():
        assert state.phase is Phase.RELEASING


def step(state, rows=3):
    """One batch of one piece."""
    add(state, rows)
    assert state.end_piece() is False
    state.count_step()
    release(state)


def summed():
    state = BatchState()
    add(state)
    return state


def partial():
    state = summed()
    state.end_piece()
    return state


def broken(context):
    """A state whose context an error has interrupted."""
    state, change = enter(context)
    with pytest.raises(KeyboardInterrupt), change:
        raise KeyboardInterrupt
    return state


def enter(context):
    """A state, and its context."""
    state = partial() if context == "releasing" else BatchState()
    return state, state.adding(3) if context == "adding" else getattr(state, context)()


STATES = {
    Phase.BETWEEN_STEPS: BatchState,
    Phase.SUMMED: summed,
    Phase.PARTIAL: partial,
    Phase.BROKEN: lambda: broken("adding"),
}
CALLS = {
    "begin_pass": lambda state: state.begin_pass(),
    "draw": lambda state: state.draw(5),
    "require_backward_allowed": lambda state: state.require_backward_allowed(),
    "require_zero_grad_allowed": lambda state: state.require_zero_grad_allowed(),
    "adding": add,
    "end_piece": lambda state: state.end_piece(),
    "count_step": lambda state: state.count_step(),
    "releasing": release,
    "require_between_steps": lambda state: state.require_between_steps(),
    "resume": lambda state: state.resume(steps=1, passes=1, taken=1, is_foreign=False),
}
# For each call, the phase that it leads to from each phase, or the message that refuses it.
BACKWARD_FIRST = "A backward pass of the private criterion's loss must precede"
WITHIN = "between steps only, not within a batch"
TRANSITIONS = {
    "begin_pass": (Phase.BETWEEN_STEPS, "A pass was left within a batch", "A pass was left within a batch"),
    "draw": (
        Phase.BETWEEN_STEPS,
        r"step\(\) must follow every backward pass",
        "every piece of a batch must come before",
    ),
    "require_backward_allowed": (Phase.BETWEEN_STEPS, r"step\(\) must follow every backward pass", Phase.PARTIAL),
    "require_zero_grad_allowed": (Phase.BETWEEN_STEPS, r"must come before optimizer.zero_grad\(\)", Phase.PARTIAL),
    "adding": (Phase.SUMMED, r"step\(\) must follow every backward pass", Phase.SUMMED),
    "end_piece": (BACKWARD_FIRST, Phase.PARTIAL, BACKWARD_FIRST),
    "count_step": (BACKWARD_FIRST, BACKWARD_FIRST, Phase.PARTIAL),
    "releasing": (BACKWARD_FIRST, BACKWARD_FIRST, Phase.BETWEEN_STEPS),
    "require_between_steps": (Phase.BETWEEN_STEPS, WITHIN, WITHIN),
    "resume": (Phase.BETWEEN_STEPS, WITHIN, WITHIN),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", range(3), ids=["between", "summed", "partial"])
def test_transitions(call, number):
    phase = (Phase.BETWEEN_STEPS, Phase.SUMMED, Phase.PARTIAL)[number]
    state, expected = STATES[phase](), TRANSITIONS[call][number]
    assert state.phase is phase
    if isinstance(expected, Phase):
        CALLS[call](state)
        assert state.phase is expected
    else:
        with pytest.raises(RuntimeError, match=expected):
            CALLS[call](state)
        assert state.phase is phase


@pytest.mark.parametrize("call", sorted(set(CALLS) - {"require_zero_grad_allowed"}))
@pytest.mark.parametrize("context", CONTEXTS)
def test_nothing_follows_an_interrupted_change_of_the_sums(call, context):
    state = broken(context)
    assert state.phase is Phase.BROKEN
    with pytest.raises(RuntimeError, match=INTERRUPTED):
        CALLS[call](state)
    assert state.phase is Phase.BROKEN


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_change_of_the_sums_does_not_begin_within_another(context):
    state, change = enter(context)
    with pytest.raises(RuntimeError, match=INTERRUPTED), change:
        add(state)
    assert state.phase is Phase.BROKEN


def test_a_check_that_passes_changes_nothing():
    for state in (BatchState(), partial()):
        phase, rows = state.phase, state.rows
        with state.checking():
            assert state.phase is Phase.ADDING
        assert (state.phase, state.rows) == (phase, rows)


def test_a_batch_in_pieces():
    state = BatchState()
    state.begin_pass()
    state.draw(5)
    for more in (True, True, False):
        state.announce(more)
    assert [(add(state, rows), state.end_piece()) for rows in (2, 2, 1)] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert state.rows == 5
    state.count_step()
    release(state)
    assert (state.phase, state.rows, state.steps) == (Phase.BETWEEN_STEPS, 0, 1)
    assert add(state) is True  # the first piece of the next batch


def test_a_piece_that_was_announced_and_left_out_ends_the_training_of_its_pass():
    state = BatchState()
    state.begin_pass()
    state.draw(5)
    state.announce(False)
    with pytest.raises(RuntimeError, match="every piece of a batch must come before the next one"):
        state.draw(5)
    state.begin_pass()  # forgets what was announced in the pass that was left
    state.draw(5)


def test_a_step_has_no_more_rows_than_records_were_drawn():
    state = BatchState()
    state.begin_pass()
    state.draw(5)
    step(state, 5)
    state.draw(5)
    add(state, 6)
    state.end_piece()
    with pytest.raises(RuntimeError, match="got 6 rows where 5 records were drawn"):
        state.count_step()
    assert state.steps == 1
    with pytest.raises(RuntimeError, match="every piece of a batch must come before"):
        state.draw(5)  # its rows are in the sums


def test_an_empty_batch_has_one_row():
    state = BatchState()
    state.begin_pass()
    state.draw(0)
    step(state, 1)
    assert (state.steps, state.is_foreign) == (1, False)


def test_without_workers_a_step_is_made_of_the_last_batch():
    state = BatchState()
    this = state.begin_pass()
    state.draw(2)  # left out
    state.draw(5)
    step(state, 5)
    assert (this.drawn, this.taken) == (2, 2)


def test_with_workers_steps_are_made_of_the_batches_in_their_order():
    state = BatchState(fetches_ahead=True)
    this = state.begin_pass()
    for size in (2, 5, 1):
        state.draw(size)
    step(state, 2)
    assert (this.drawn, this.taken) == (3, 1)
    step(state, 5)
    add(state, 2)
    state.end_piece()
    with pytest.raises(RuntimeError, match="got 2 rows where 1 records were drawn"):
        state.count_step()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_without_a_batch_is_foreign(ahead):
    state = BatchState(fetches_ahead=ahead)
    state.begin_pass()
    state.draw(5)
    step(state, 5)
    assert not state.is_foreign
    step(state, 99)
    assert (state.is_foreign, state.steps) == (True, 2)
    state.draw(5)
    step(state, 5)
    assert state.is_foreign  # for good


def test_foreign_steps_are_not_compared_with_batches():
    state = BatchState()
    step(state, 99)
    state.begin_pass()
    state.draw(5)
    step(state, 6)  # nothing is certified anyway
    assert (state.is_foreign, state.steps) == (True, 2)


def test_batches_of_the_last_pass_are_forgotten():
    state = BatchState(fetches_ahead=True)
    state.begin_pass()
    state.draw(99)
    state.begin_pass()
    state.draw(5)
    add(state, 6)
    state.end_piece()
    with pytest.raises(RuntimeError, match="got 6 rows where 5 records were drawn"):
        state.count_step()


@pytest.mark.parametrize(("ahead", "begun"), [(False, 0), (True, 1)])
def test_a_pass_counts_from_its_first_step_or_with_workers_from_its_start(ahead, begun):
    state = BatchState(fetches_ahead=ahead)
    state.begin_pass()
    assert state.passes == begun
    for _ in range(2):
        state.draw(5)
        step(state)
    assert state.passes == 1


def test_one_pass_at_a_time():
    state = BatchState()
    first = state.begin_pass()
    state.require_current(first)
    second = state.begin_pass()
    with pytest.raises(RuntimeError, match="after another one was begun"):
        state.require_current(first)
    state.resume(steps=7, passes=2, taken=3, is_foreign=True)
    with pytest.raises(RuntimeError, match="a checkpoint was loaded"):
        state.require_current(second)


def test_a_resumed_pass_is_not_counted_again():
    state = BatchState()
    state.resume(steps=7, passes=2, taken=3, is_foreign=False)
    assert (state.steps, state.passes, state.current.drawn, state.current.taken) == (7, 2, 3, 3)
    this = state.begin_pass(skip=3)
    state.draw(5)
    step(state)
    assert (this.drawn, this.taken, state.passes, state.steps) == (4, 4, 2, 8)
    state.begin_pass()
    state.draw(5)
    step(state)
    assert state.passes == 3


def test_batches_drawn_before_a_checkpoint_was_loaded_are_foreign():
    state = BatchState(fetches_ahead=True)
    state.begin_pass()
    state.draw(5)
    state.resume(steps=0, passes=0, taken=0, is_foreign=False)
    step(state)
    assert state.is_foreign


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_state_is_not_copied(copied):
    with pytest.raises(TypeError, match="A private training cannot be copied or pickled"):
        copied(BatchState())
