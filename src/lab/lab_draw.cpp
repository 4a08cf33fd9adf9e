// Reports are drawn from the records, all at once, so that neighbours link to one another.
#include <algorithm>
#include <system_error>
#include <vector>

#include "lab/lab.h"
#include "lab/lab_folder.h"
#include "lab/report.h"

namespace tessera::lab {
namespace {

constexpr size_t kMostReportBytes = size_t{256} << 20;

// Leaves a file alone that has these bytes already: a lab has many reports, and a change touches few.
Status update_file(const std::filesystem::path& path, const std::string& text) {
  const Result<std::string> old = read_file(path, kMostReportBytes);
  return old.ok() && old.value() == text ? Status{} : write_file_atomically(path, text);
}

// Temporary files of writers that were killed. Who holds the lab's lock is the only writer, so none is in use.
void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') && name.ends_with(".tmp")) {
      found.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& path : found) {
    std::filesystem::remove(path, error);
  }
}

bool is_damaged(const Census& census, const std::string& name) {
  return std::any_of(census.damages.begin(), census.damages.end(), [&](const Damage& d) { return d.file == name; });
}

}  // namespace

Result<Census> Lab::draw_all() const {
  // An attempt that nobody runs any more becomes "interrupted" before it is drawn.
  Result<Census> before = census();
  TESSERA_RETURN_IF_ERROR(before.status());
  for (const Experiment& e : before.value().experiments) {
    if (e.state() == "running") {
      (void)claim(e.name);  // an error says that it does run
    }
  }
  Result<FileLock> lock = FileLock::acquire(folder_ / kLabLock, FileLock::Wait::kForever);
  TESSERA_RETURN_IF_ERROR(lock.status());
  return draw_locked();
}

Result<Census> Lab::draw_locked() const {
  remove_leftovers(folder_);
  Result<Census> drawn = census();
  TESSERA_RETURN_IF_ERROR(drawn.status());
  const std::vector<Experiment>& all = drawn.value().experiments;
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_damaged(drawn.value(), all[i].name)) {
      continue;
    }
    const Neighbours neighbours{i > 0 ? all[i - 1].name : "", i + 1 < all.size() ? all[i + 1].name : ""};
    TESSERA_RETURN_IF_ERROR(update_file(folder_ / (all[i].name + ".html"), report_html(all[i], neighbours)));
    TESSERA_RETURN_IF_ERROR(update_file(folder_ / (all[i].name + ".md"), report_markdown(all[i], neighbours)));
  }
  for (const Damage& damage : drawn.value().damages) {
    if (number_of(damage.file) > 0) {  // not a number that is missing
      TESSERA_RETURN_IF_ERROR(update_file(folder_ / (damage.file + ".html"), damaged_html(damage)));
      TESSERA_RETURN_IF_ERROR(update_file(folder_ / (damage.file + ".md"), damaged_markdown(damage)));
    }
  }
  TESSERA_RETURN_IF_ERROR(update_file(folder_ / "index.html", index_html(drawn.value())));
  TESSERA_RETURN_IF_ERROR(update_file(folder_ / "index.md", index_markdown(drawn.value())));
  if (drawn.value().damages.empty()) {  // what it remembers is needed until the records are whole again
    TESSERA_RETURN_IF_ERROR(update_file(folder_ / kIndexFile, pretty_json(index_json(drawn.value()))));
  }
  return drawn;
}

}  // namespace tessera::lab
