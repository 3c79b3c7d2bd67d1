"""What TensorFlow keeps private on its objects, beside what the doors list.

A door lists names of modules and classes that are looked up there. The names here are on
objects that were made elsewhere: a graph, a variable, an optimizer. Undocumented names
that do not begin with an underscore are listed as well.

TAKEN: what modules of this package read, call or set on objects of TensorFlow.
GIVEN: what classes of this package have because TensorFlow asks them for it.

A test proves each name on a real object of TensorFlow's own of that kind, another one that
every private name in use is listed here or at a door.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Row(NamedTuple):
    """A name on one kind of object, why it is needed, and a TensorFlow that has it, if not all."""

    owner: str
    name: str
    why: str
    since: str | None


_SINCE = {"_get_xla_sharding": "2.18"}


def _rows(table: str) -> Iterator[Row]:
    """Yields a row for each name: below its owner, one or more names | their reason."""
    names: list[str] = []
    for line in map(str.strip, table.strip().splitlines()):
        if line.endswith(":"):
            owner = line[:-1]
            continue
        listed, _, why = line.partition("|")
        names += listed.split()
        if why:
            yield from (Row(owner, name, why.strip(), _SINCE.get(name)) for name in names)
            names = []


TAKEN = tuple(
    _rows("""
    graph:
        _variable_creator_stack _device_function_stack _control_dependencies_stack
        _colocation_stack | a tower's thread inherits them
        _c_graph new_operations _names_in_use _functions
            | copies of operations and functions are imported into it
        _attr_scope_map _op_to_kernel_label_map _gradient_override_map
            | copies have what their originals have of these, and no more
        _get_control_flow_context | a merge call in a loop or branch is refused
        _set_control_flow_context | what replaces operations of a loop is made inside of it
        _distribution_strategy_stack | where tf.distribute keeps its own mode
        _mutation_lock | a tower that waits for others lets them run sessions of the graph
        _last_loss_reduction | tf.losses notes there whether the last loss is a sum
        _get_function | rows are looked at inside of functions that operations call
        building_function | variables of a function that a graph calls are lifted out of it
    graph of a function:
        outer_graph | sessions of the outermost one show the devices of towers in it
    stack of a graph:
        copy | a tower's thread inherits the devices and colocations, and adds its own
        peek_objs | copies of a variable leave a colocation only where one is in force
    operation:
        _from_c_op | what was imported becomes one of Python's, and no more
        _id | tells what a tower has made from what was made across towers
        _update_input | what is whole reads copies in place of originals
        _control_outputs _add_control_inputs _add_control_input _remove_all_control_inputs _c_op
            | it waits for copies, and for reads that come before its write
        _get_control_flow_context _set_control_flow_context
            | copies of a loop's exits belong to it, and what a condition rules is not changed
        _clear_attr _set_device | what reads a variable is put beside it, and beside nothing else
    dtype:
        _is_ref_dtype | a reference to a variable is neither copied nor sent
    tensor:
        _as_tf_output | copies of operations read it
    resource variable:
        _cached_value _read_variable_op _lazy_read _strided_slice_assign sparse_read handle
            | a copy is read and written in place of the distributed variable
        _in_graph_mode _as_graph_element
            | a session fetches a distributed variable by its first copy
        _unique_id | a replicated variable as a TPU replica sees it is the same variable
        _distribute_strategy | whether a variable was made under a strategy
        _save_slice_info _set_save_slice_info | a mirrored part of a variable is saved as that part
        _export_to_saved_model_graph _write_object_proto
            | a SavedModel has a distributed variable once, described as its copy
    copy of a mirrored variable:
        _distributed_container | finds the distributed variable that a copy belongs to
    store of variables:
        _vars _partitioned_vars | each tower begins with what there was before all towers
    store of variable scopes:
        current_scope variable_scopes_count
            | a tower's thread inherits the scope, and counts unnamed ones as the first one does
    summary state:
        is_recording_distribution_strategy | only the first tower writes summaries
    eager context:
        device_policy | a tower's thread inherits the device policy
        config | a session without settings shows the devices that towers name
    function:
        python_function _autograph _experimental_autograph_options _jit_compile
        _reduce_retracing
            | towers of a tf.function are traced in one function, with the options of the given
    replicate context of a TPU:
        get_replicated_var_handle | the resource that stands for all replicas' copies
    optimizer:
        _create_slots | slots are made where no condition holds
        _distributed_apply | a single tower's step is the one that one device makes
        _get_non_slot_variable | AdamW corrects its moments as Adam does
    synchronous optimizer:
        _replicas_to_aggregate _total_num_replicas
            | without more tokens than it needs a step waits for its own
    hook of a synchronous optimizer:
        _sync_optimizer _is_chief _num_tokens
            | a hook of ours, for whose thread nobody waits, takes its place
    loss of tf.keras:
        _get_reduction | a loss asks it whether it may average over rows in a replica
    backend of tf.keras:
        _SEED_GENERATOR | verify has both sides draw the same seeds
    optimizer of tf.keras:
        add_variable_from_reference _create_iteration_variable _build_learning_rate
            | slots, iterations and the learning rate are replicated
    hook that saves:
        _timer | checkpoints are saved at multiples of steps, wherever a run began
    scaffold:
        _saver | a scaffold of the user's own class gets another Saver
        _summary_op | summaries that a model merges by itself are run with a step
    estimator:
        _model_fn | a replicated model_fn is asked for its strategy, to train and to export
    run config:
        _evaluation_master | workers evaluate together in sessions of their servers
    run config with a strategy:
        _experimental_distribute _train_distribute _eval_distribute _distribute_coordinator_mode
        _init_distributed_setting_from_environment_var
        _maybe_overwrite_session_config_for_distributed_training
            | is completed as TensorFlow 2.15 does it
    """)
)

GIVEN = tuple(
    _rows("""
    resource variable:
        _dense_var_to_tensor _as_graph_element _lazy_read _strided_slice_assign
        _read_variable_op | TensorFlow reads, converts, fetches or writes it by this
        _shared_name _in_graph_mode _graph_key _unique_id _handle_name
            | optimizers, Savers and tf.keras name and tell variables apart by it
        _trainable _cached_value | code inside of variables asks for it
        _save_slice_info _get_save_slice_info _get_xla_sharding
            | Savers and optimizers ask whether it is a part, or sharded
        _distribute_strategy | tf.distribute asks which strategy made a variable
        _initializer_op _initial_value | set where a variable starts from a checkpoint
        _gather_saveables_for_checkpoint _serialize_to_tensors _restore_from_tensors
        _copy_trackable_to_cpu | tf.train.Checkpoint saves and restores by it, asynchronously too
        _export_to_saved_model_graph _write_object_proto
            | a SavedModel describes and maps a variable by it
    variable that tf.keras has set:
        _assign_placeholder _assign_op | what it feeds and runs to set a variable of a graph
    mirrored variable:
        _get_on_device_or_primary | optimizers ask a slot for the copy in use
        _should_act_as_resource_variable | makes TensorFlow take the resource paths
    copy of a mirrored variable:
        _distributed_container | tf.keras and tf.distribute find the variable of a copy
    strategy:
        _scale_loss_for_estimator | v1 optimizers ask whether to scale a replica's loss
    extended strategy:
        _global_batch_size | an Input of tf.keras asks whether its size is the batch's
        _num_replicas_in_sync _in_multi_worker_mode _get_local_replica_id
            | replicas and their contexts ask who they are
        _reduce _gather_to_implementation _local_results
            | methods of tf.distribute.Strategy end there
    replica context:
        _merge_call | all replicas meet there
    composite tensor:
        _type_spec | by which a tf.function knows an argument
    type spec:
        _component_specs _serialize _to_components _from_components
            | two types are compared, values taken apart and made again
    dataset of version 1:
        _make_one_shot_iterator _make_initializable_iterator
            | tf.compat.v1.data's functions of these names call it
    """)
)
