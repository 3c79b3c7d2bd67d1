"""What TensorFlow keeps private on its objects, beside what the doors list.

A door lists names of modules and classes that are looked up there. The names here are on
objects that were made elsewhere: a graph, a variable, an optimizer. Undocumented names
that do not begin with an underscore are listed as well.

TAKEN: what modules of this package read, call or set on objects of TensorFlow.
GIVEN: what classes of this package have because TensorFlow asks them for it.

A test proves each name on a real object of TensorFlow's own of that kind, another one that
every private name in use is listed here or at a door.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Row(NamedTuple):
    """A name on one kind of object.

    Attributes:
        owner: The kind of object.
        name: The name of the attribute.
        why: What it is needed for.
        since: A TensorFlow that has it, where older ones may not.
    """

    owner: str
    name: str
    why: str
    since: str | None = None


def _rows(names: Mapping[str, Mapping[str, str]]) -> tuple[Row, ...]:
    return tuple(
        Row(owner, name, why, _SINCE.get((owner, name)))
        for owner, listed in names.items()
        for name, why in listed.items()
    )


_SINCE = MappingProxyType({("resource variable", "_get_xla_sharding"): "2.18"})

TAKEN = _rows(
    {
        "graph": {
            "_variable_creator_stack": "a tower's thread inherits the creators of its caller",
            "_control_dependencies_stack": "a tower's thread inherits the control dependencies",
            "_device_function_stack": "a tower's thread inherits the devices",
            "_colocation_stack": "a tower's thread inherits the colocations",
            "_create_op_internal": "many reshapes are made in a third of the time",
            "_distribution_strategy_stack": "where tf.distribute keeps its own mode",
            "_get_control_flow_context": "a merge call inside tf.cond or tf.while_loop is refused",
            "_set_control_flow_context": "what replaces operations of a loop is made inside of it",
            "_mutation_lock": "a tower that waits for others lets them run sessions of the graph",
            "_last_loss_reduction": "tf.losses notes there whether the last loss is a sum",
            "_attr_scope_map": "copies of operations have their originals' attributes alone",
            "_op_to_kernel_label_map": "copies of operations have their originals' kernels",
            "_gradient_override_map": "copies of operations have their originals' gradients",
            "_c_graph": "copies of operations are imported into it",
            "_names_in_use": "names of copies are taken, as those of operations that Python makes",
            "new_operations": "copies of operations are imported into it",
            "_functions": "copies of functions are listed with those that a graph has",
            "_get_function": "rows are looked at inside of functions that operations call",
            "building_function": "variables of a function that a graph calls are lifted out of it",
        },
        "graph of a function": {
            "outer_graph": "sessions of the outermost one show the devices of towers in it",
        },
        "stack of a graph": {
            "copy": "a tower's thread inherits the devices and colocations, and adds its own",
            "peek_objs": "copies of a variable leave a colocation only where one is in force",
        },
        "operation": {
            "_from_c_op": "an operation that was imported becomes one of Python's, and no more",
            "_id": "tells what a tower has made from what was made across towers",
            "_c_op": "a copy may wait for an operation that has no outputs",
            "_add_control_inputs": "a write waits for the batch, and for what reads the variable",
            "_add_control_input": "a value that goes over workers waits for its lengths",
            "_remove_all_control_inputs": "what is whole waits for copies, not for originals",
            "_control_outputs": "who waits for an operation waits for what replaces it",
            "_update_input": "what is whole reads joined values in place of originals",
            "_get_control_flow_context": "what runs under a condition is not changed",
            "_set_control_flow_context": "copies of a loop's exits belong to that loop",
            "_clear_attr": "what reads a variable leaves what else it was put beside",
            "_set_device": "what reads a variable is put beside it",
        },
        "dtype": {
            "_is_ref_dtype": "a reference to a variable is neither copied nor sent",
        },
        "tensor": {
            "_as_tf_output": "copies of operations read it",
        },
        "resource variable": {
            "_cached_value": "a copy that is read once, as for a loop, is not read again",
            "_read_variable_op": "a copy is read in a function, on a device that is named",
            "_in_graph_mode": "copies in a graph are fetched and found by their operations",
            "_as_graph_element": "a session fetches a distributed variable by its first copy",
            "_lazy_read": "an operation on a copy's handle gives that copy back",
            "_strided_slice_assign": "a slice of a copy is written by it",
            "_unique_id": "a replicated variable as a TPU replica sees it is the same variable",
            "_distribute_strategy": "whether a variable was made under a strategy",
            "_save_slice_info": "a mirrored part of a variable is saved as that part",
            "_set_save_slice_info": "a mirrored part of a variable is saved as that part",
            "_export_to_saved_model_graph": "a SavedModel gets a distributed variable once",
            "_write_object_proto": "a SavedModel describes a distributed variable as its copy",
            "sparse_read": "a gather from a tower's variable reads those rows alone",
            "handle": "updates and placement look at the resource of a copy",
        },
        "copy of a mirrored variable": {
            "_distributed_container": "finds the distributed variable that a copy belongs to",
        },
        "store of variables": {
            "_vars": "each tower begins with the variables that there were before all towers",
            "_partitioned_vars": "each tower reuses the partitioned variables of its own",
        },
        "store of variable scopes": {
            "current_scope": "a tower's thread inherits the scope",
            "variable_scopes_count": "a tower counts unnamed scopes as the first one does",
        },
        "summary state": {
            "is_recording_distribution_strategy": "only the first tower writes summaries",
        },
        "eager context": {
            "device_policy": "a tower's thread inherits the device policy",
            "config": "a session without settings shows the devices that towers name",
        },
        "function": {
            "python_function": "the towers of a tf.function are traced inside of one function",
            "_autograph": "the function of all towers has the options of the one given",
            "_experimental_autograph_options": "one of these options",
            "_jit_compile": "one of these options",
            "_reduce_retracing": "one of these options",
        },
        "replicate context of a TPU": {
            "get_replicated_var_handle": "the resource that stands for all replicas' copies",
        },
        "optimizer": {
            "_create_slots": "slots are made where no condition holds",
            "_distributed_apply": "a single tower's step is the one that one device makes",
            "_get_non_slot_variable": "AdamW corrects its moments as Adam does",
            "_learning_rate": "the learning rate is shown, by whichever of both names it has",
        },
        "synchronous optimizer": {
            "_replicas_to_aggregate": "without more tokens than it needs a step waits for its own",
            "_total_num_replicas": "without more tokens than it needs a step waits for its own",
        },
        "hook of a synchronous optimizer": {
            "_sync_optimizer": "a hook of ours, for whose thread nobody waits, takes its place",
            "_is_chief": "a hook of ours, for whose thread nobody waits, takes its place",
            "_num_tokens": "a hook of ours, for whose thread nobody waits, takes its place",
        },
        "Adam": {
            "_lr": "the learning rate is shown, by whichever of both names it has",
        },
        "loss-scale optimizer": {
            "_optimizer": "the slots are those of the optimizer inside",
        },
        "loss of tf.keras": {
            "_get_reduction": "a loss asks it whether it may average over rows in a replica",
        },
        "backend of tf.keras": {
            "_SEED_GENERATOR": "verify has both sides draw the same seeds",
        },
        "optimizer of tf.keras": {
            "add_variable_from_reference": "the slots of an optimizer are replicated",
            "_create_iteration_variable": "the iterations of an optimizer are replicated",
            "_build_learning_rate": "the learning rate of an optimizer is replicated",
        },
        "hook that saves": {
            "_timer": "checkpoints are saved at multiples of steps, wherever a run began",
        },
        "scaffold": {
            "_init_fn": "a function that sets initial values may draw random numbers",
            "_saver": "a scaffold of the user's own class gets another Saver",
            "_summary_op": "summaries that a model merges by itself are run with a step",
        },
        "estimator": {
            "_model_fn": "a replicated model_fn is asked for its strategy, to train and to export",
        },
        "run config": {
            "_evaluation_master": "workers evaluate together in sessions of their servers",
        },
        "run config with a strategy": {
            "_experimental_distribute": "is completed as TensorFlow 2.15 does it",
            "_train_distribute": "is completed as TensorFlow 2.15 does it",
            "_eval_distribute": "is completed as TensorFlow 2.15 does it",
            "_distribute_coordinator_mode": "is set as TensorFlow 2.15 does it",
            "_init_distributed_setting_from_environment_var": "finds the cluster",
            "_maybe_overwrite_session_config_for_distributed_training": "names the devices",
        },
    }
)

GIVEN = _rows(
    {
        "resource variable": {
            "_dense_var_to_tensor": "TensorFlow converts a variable to a tensor by it",
            "_as_graph_element": "a session asks what it fetches for a variable",
            "_lazy_read": "tf.compat.v1.scatter_update and its like return what it returns",
            "_strided_slice_assign": "variable[1:2].assign(value) ends there",
            "_read_variable_op": "code of a TPU reads a variable by it",
            "_shared_name": "slots and Savers name what belongs to a variable after it",
            "_in_graph_mode": "optimizers and Savers ask whether a variable is of a graph",
            "_graph_key": "optimizers list the slots of variables of their own graph",
            "_unique_id": "optimizers tell variables apart by it where there is no graph",
            "_handle_name": "tf.keras' autocast variables ask for it",
            "_trainable": "code inside of variables asks for it",
            "_cached_value": "code inside of variables asks for it",
            "_save_slice_info": "Savers ask whether a variable is part of a partitioned one",
            "_get_save_slice_info": "variables ask whether all of a list are parts of one",
            "_get_xla_sharding": "optimizers shard the slots of a sharded variable",
            "_distribute_strategy": "tf.distribute asks which strategy made a variable",
            "_initializer_op": "set where a variable starts from a checkpoint",
            "_initial_value": "set where a variable starts from a checkpoint",
            "_gather_saveables_for_checkpoint": "tf.train.Checkpoint saves and restores by it",
            "_serialize_to_tensors": "tf.train.Checkpoint saves by it",
            "_restore_from_tensors": "tf.train.Checkpoint restores by it",
            "_copy_trackable_to_cpu": "an asynchronous checkpoint saves the value of now by it",
            "_export_to_saved_model_graph": "a SavedModel maps a variable to a new one by it",
            "_write_object_proto": "a SavedModel describes a variable by it",
        },
        "variable that tf.keras has set": {
            "_assign_placeholder": "what it feeds to set a variable of a graph",
            "_assign_op": "what it runs to set a variable of a graph",
        },
        "mirrored variable": {
            "_get_on_device_or_primary": "optimizers ask a slot for the copy in use",
            "_should_act_as_resource_variable": "makes TensorFlow take the resource paths",
        },
        "copy of a mirrored variable": {
            "_distributed_container": "tf.keras and tf.distribute find the variable of a copy",
        },
        "strategy": {
            "_scale_loss_for_estimator": "v1 optimizers ask whether to scale a replica's loss",
        },
        "extended strategy": {
            "_global_batch_size": "an Input of tf.keras asks whether its size is the batch's",
            "_num_replicas_in_sync": "code in a replica asks how many there are",
            "_local_results": "lists the values of a distributed one",
            "_in_multi_worker_mode": "whether there are other workers",
            "_reduce": "tf.distribute.Strategy.reduce ends there",
            "_gather_to_implementation": "tf.distribute.Strategy.gather ends there",
            "_get_local_replica_id": "a replica context asks for its number",
        },
        "replica context": {
            "_merge_call": "all replicas meet there",
        },
        "composite tensor": {
            "_type_spec": "by which a tf.function knows an argument",
        },
        "type spec": {
            "_component_specs": "the types of the tensors inside",
            "_serialize": "two types are compared by it",
            "_to_components": "takes a value apart into tensors",
            "_from_components": "makes a value from its tensors",
        },
        "dataset of version 1": {
            "_make_one_shot_iterator": "tf.compat.v1.data.make_one_shot_iterator calls it",
            "_make_initializable_iterator": "make_initializable_iterator calls it",
        },
    }
)
