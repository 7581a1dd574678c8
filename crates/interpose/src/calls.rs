//! Each call goes through the hook first, and then to its handler if it needs care.
//!
//! A call needs care if it would undo what this library rests on (signals, children, exec,
//! sandboxes), if it changes memory whose contents we remember, or if it ends the process.

use crate::abi::MAP_FIXED;
use crate::call::Verdict;
use crate::dispatch::{self, Stack};
use crate::exec;
use crate::frame::{Frame, Next};
use crate::hook::hook;
use crate::serve::{clock, memory};
use crate::state::is_filtered;
use crate::syscalls::Care;
use crate::{image, object, report, sandbox, signal, thread, tools};

/// The entry calls this for every call of the program.
pub(crate) extern "C" fn on_call(frame: &mut Frame) -> Next {
    let verdict = hook(&frame.call);
    if let Verdict::Served(result) | Verdict::Made(result) = verdict {
        return frame.done(result);
    }
    let next = match frame.call.row().care {
        Care::Nothing => Next::Pass,
        care => protect(frame, care),
    };
    match (verdict, next) {
        (Verdict::Wait, Next::Pass) => frame.resume = clock::cycles() as usize,
        // However little time it takes, it counts.
        (Verdict::Change, Next::Pass) => frame.resume = 0,
        _ => return next,
    }
    Next::Wait
}

#[cold]
#[inline(never)]
fn protect(frame: &mut Frame, care: Care) -> Next {
    match care {
        Care::Nothing => {}
        Care::Unmap if frame.is_in(frame.call.args[0], frame.call.args[1]) => return frame.done(0),
        // It replaces nothing.
        Care::Map if frame.call.args[3] & MAP_FIXED == 0 => {}
        Care::Map | Care::Unmap | Care::Remap => {
            object::forget_changed(&frame.call);
            image::forget_changed(&frame.call);
            return change_memory(frame);
        }
        Care::Pages | Care::Advise | Care::AdviseOf | Care::Attach => return change_memory(frame),
        Care::Action => {
            if !is_filtered() && signal::sets_handler_on_stack(&frame.call) {
                dispatch::install(Stack::Alternate);
            }
            return signal::action(frame);
        }
        Care::Mask => return signal::mask(frame),
        Care::Return => return Next::SignalReturn,
        Care::MaskA => signal::call_with_mask(frame, 0),
        Care::MaskD => signal::call_with_mask(frame, 3),
        Care::MaskE => signal::call_with_mask(frame, 4),
        Care::MaskPair => signal::call_with_mask_pair(frame, 5),
        Care::Create => return thread::create(frame),
        Care::Create3 => return thread::create_by_clone3(frame),
        Care::Exec => return exec::execute(frame, 2),
        Care::ExecAt => return exec::execute(frame, 3),
        Care::Exit => report::at_exit(frame.call.number),
        Care::Sandbox => return sandbox::enter(frame),
        Care::Trace => tools::on_ptrace(frame.call.args[0]),
    }
    Next::Pass
}

/// A call that may take a page away, or the right to use it.
fn change_memory(frame: &mut Frame) -> Next {
    match memory::change(&frame.call) {
        Some(result) => frame.done(result),
        None => Next::Pass,
    }
}
