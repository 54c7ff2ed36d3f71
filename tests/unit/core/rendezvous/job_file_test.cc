#include "rendezvous/job_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace coupler::rendezvous {
namespace {

class JobFileTest : public ::testing::Test {
 protected:
  JobFileTest() {
    char name[] = "/tmp/coupler-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ + "/job";
  }
  ~JobFileTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& text, mode_t mode) const {
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }
  std::string refusal() const {
    try {
      read_job_file(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "no error";
  }

  const JobAddress job_{"127.0.0.1", 4242, random_bytes32()};
  std::string folder_, path_;
};

TEST_F(JobFileTest, MemoryFile_IsReadThroughItsDescriptor_AndPrivate) {
  const UniqueFd fd = make_job_memory_file(job_);
  const auto job = read_job_file("/proc/self/fd/" + std::to_string(fd.get()));
  EXPECT_EQ(job.host, job_.host);
  EXPECT_EQ(job.port, job_.port);
  EXPECT_EQ(job.secret, job_.secret);
  struct stat status {};
  ASSERT_EQ(::fstat(fd.get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(JobFileTest, FileReadableByOthers_IsRefused_WithTheFix) {
  for (const mode_t mode : {0644U, 0640U, 0604U}) {
    write(format_job_file(job_), mode);
    const auto text = refusal();
    EXPECT_NE(text.find("read by others"), std::string::npos) << text;
    EXPECT_NE(text.find("chmod 600 " + path_), std::string::npos) << text;
  }
}

TEST_F(JobFileTest, MissingFile_IsRefused_NamingIt) {
  EXPECT_NE(refusal().find(path_), std::string::npos);
}

TEST_F(JobFileTest, OtherContent_IsRefused_NamingIt) {
  const auto whole = format_job_file(job_);
  for (const std::string& text :
       {std::string(), std::string("hello\n"), whole.substr(0, 40), "x" + whole,
        std::string("coupler job 2\nhost\n99999\n") + std::string(64, '0') + "\nplain\n",
        std::string("coupler job 2\nhost\n1\n") + std::string(63, '0') + "g\nplain\n"}) {
    write(text, 0600);
    EXPECT_NE(refusal().find(path_), std::string::npos) << text;
  }
  write(whole, 0600);
  EXPECT_EQ(read_job_file(path_).port, 4242);
}

TEST_F(JobFileTest, Fifo_IsRefused_WithoutWaiting) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("not a regular file"), std::string::npos);
}

TEST_F(JobFileTest, Tls_IsSaidInTheFile_AndNothingElseIsTaken) {
  JobAddress job = job_;
  job.tls = true;
  const auto text = format_job_file(job);
  write(text, 0600);
  EXPECT_TRUE(read_job_file(path_).tls);
  write(format_job_file(job_), 0600);
  EXPECT_FALSE(read_job_file(path_).tls);
  write(text.substr(0, text.size() - 4) + "ssl\n", 0600);
  EXPECT_NE(refusal().find(path_), std::string::npos);
}

TEST_F(JobFileTest, PathOfAUnixSocket_HasNoPort_AndAnAddressHasOne) {
  JobAddress job = job_;
  job.host = "/proc/42/fd/7";
  job.port = 0;
  write(format_job_file(job), 0600);
  EXPECT_EQ(read_job_file(path_).host, job.host);
  EXPECT_EQ(read_job_file(path_).port, 0);
  job.port = 4242;
  EXPECT_FALSE(parse_job_file(format_job_file(job)));
  job.host = "127.0.0.1";
  job.port = 0;
  EXPECT_FALSE(parse_job_file(format_job_file(job)));
}

TEST_F(JobFileTest, Folder_IsRefused) {
  std::filesystem::create_directory(path_);
  EXPECT_NE(refusal().find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace coupler::rendezvous
