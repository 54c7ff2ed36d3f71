// What is checked of a plugin's file before any of its code runs. [any-thread]
//
// Who may replace the file may run code as us, so: the file is a regular file, it and its folder
// belong to root or to us and are writable by nobody else (a group that is the owner's own private
// one does not count as somebody else), and no folder above is writable by everybody unless it is
// sticky, as /tmp is. The plugin's own folder must not even be sticky: a plugin may open a second
// library that lies beside it. With that nobody but root, us, or the owner of a folder above can
// exchange the file between check and dlopen; that is why the real path is opened afterwards and
// not /proc/self/fd/N, under which dladdr would give the plugin a wrong idea of where it lies.
#pragma once

#include <string>

namespace coupler {

// Returns the real path (symbolic links resolved) of a plugin that passed. sha256: 64 hex digits
// the file's hash must equal, or "". Throws Error(kPlugin); its subject is the path.
std::string check_plugin_file(const std::string& path, const std::string& sha256);

}  // namespace coupler
