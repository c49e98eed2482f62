#pragma once

#include <c10/util/intrusive_ptr.h>

#include <functional>

namespace c10d {
class Backend;
}

namespace accel::gloo {

/// What a rank that waits in a group of an elastic training does.
enum class WaitState {
  kContinue,  ///< the view of the group is current
  kGiveUp,    ///< a rank is lost: the wait throws elastic::RankLost
  kOver,      ///< the training has ended: errors are those of the transport
};

/// Called by any thread.
using WaitStateFunction = std::function<WaitState()>;

/// Wraps `backend`, so that the waits of its works end when `state` says so. While it does not say kOver, errors of the
/// transport are elastic::RankLost.
c10::intrusive_ptr<c10d::Backend> interruptible(c10::intrusive_ptr<c10d::Backend> backend, WaitStateFunction state);

}  // namespace accel::gloo
