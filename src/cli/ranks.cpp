#include "cli/ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <new>
#include <system_error>

#include "cli/commands.h"

namespace plimsoll::cli {
namespace {

std::shared_ptr<Communicator> join(double timeout) {
  std::unique_ptr<Transport> transport = open_mpi();
  if (!transport) return nullptr;
  return std::make_shared<Communicator>(std::move(transport),
                                        std::chrono::milliseconds(static_cast<int64_t>(std::min(timeout, 1e9) * 1000)));
}

int end(Communicator& ranks, ErrorCode code, const std::string& why) {
  ranks.fail(code, ranks.is_first() ? why : fmt::format("{}: {}", ranks.name(ranks.rank()), why));
  return exit_code(code);
}

}  // namespace

int as_rank(double timeout, const std::function<int(const std::shared_ptr<Communicator>&)>& run) {
  const std::shared_ptr<Communicator> ranks = join(timeout);
  if (!ranks) return run(nullptr);
  ranks->set_teller([](std::string_view why) { complain(why); });
  try {
    const int code = run(ranks);
    ranks->finish();
    return code;
  } catch (const RankFailed& error) {
    return exit_code(error.code());
  } catch (const Error& error) {
    return end(*ranks, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return end(*ranks, ErrorCode::device_failure, "the system has no more memory; lower --memory or --batch");
  } catch (const std::system_error& error) {
    return end(
        *ranks, ErrorCode::device_failure,
        fmt::format("the system refused what was asked of it: {}; a limit (ulimit -a) may be too low", error.what()));
  } catch (const std::exception& error) {
    return end(*ranks, ErrorCode::internal, fmt::format("internal error: {}", error.what()));
  }
}

}  // namespace plimsoll::cli
