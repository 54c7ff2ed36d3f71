#include "formats/torch_archive.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "first_line.h"
#include "pickle_text.h"
#include "zip_bytes.h"

namespace coupler::formats {
namespace {

using coupler::testing::first_line;
using coupler::testing::text_of;
using coupler::testing::torch_bytes;
using coupler::testing::zip_bytes;
using coupler::testing::ZipEntry;
using namespace std::string_literals;

// Written by PyTorch; see make_fixtures.py in the same folder.
std::string archive_path(const std::string& name) {
  return COUPLER_SOURCE_DIR "/tests/unit/core/formats/fixtures/torch/" + name;
}

std::string archive_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string archive_error_of(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_FALSE(error.detail().subject.empty()) << error.what();
    EXPECT_FALSE(error.detail().hint.empty()) << error.what();
    return first_line(error);
  }
  return "no error";
}

// The message of the error from opening a fixture, without its folder.
std::string archive_refusal(const std::string& name, ErrorCode code = ErrorCode::kIo) {
  std::string message = archive_error_of([&] { TorchArchive::open(archive_path(name)); }, code);
  const size_t at = message.find(archive_path(""));
  return at == std::string::npos ? message : message.erase(at, archive_path("").size());
}

// The message of the error from reading the tensors of a file with these bytes.
std::string bytes_refusal(const std::string& bytes, ErrorCode code = ErrorCode::kIo) {
  // An exact-size heap copy, so that the address sanitizer detects reads past the end.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  return archive_error_of([&] { TorchArchive(exact.data(), exact.size(), "m.pt").tensors(); },
                          code);
}

std::string line(const TorchTensor& tensor) {
  return fmt::format("{} {} [{}] by [{}] at {} of {}", tensor.name, to_string(tensor.dtype),
                     fmt::join(tensor.shape, ","), fmt::join(tensor.strides, ","), tensor.offset,
                     tensor.storage_key);
}

std::vector<std::string> lines(const TorchArchive& archive) {
  std::vector<std::string> result;
  for (const auto& tensor : archive.tensors()) result.push_back(line(tensor));
  return result;
}

template <typename T>
std::vector<T> values(const TorchArchive& archive, const TorchTensor& tensor) {
  std::vector<T> result((tensor.bytes.end - tensor.bytes.begin) / sizeof(T));
  std::memcpy(result.data(), archive.data() + tensor.bytes.begin,
              tensor.bytes.end - tensor.bytes.begin);
  return result;
}

TorchTensor named(const TorchArchive& archive, const std::string& name) {
  for (const auto& tensor : archive.tensors())
    if (tensor.name == name) return tensor;
  ADD_FAILURE() << name;
  return {};
}

TEST(TorchArchive_StateDict, OfEveryType_IsListedInItsOrder) {
  const std::vector<std::string> wanted{
      "bf16 BF16 [2,3] by [3,1] at 0 of 0",
      "f16 F16 [2,3] by [3,1] at 0 of 1",
      "i64 I64 [2,3] by [3,1] at 0 of 2",
      "bool BOOL [2,3] by [3,1] at 0 of 3",
      "c64 C64 [2,3] by [3,1] at 0 of 4",
      "f64 F64 [2,3] by [3,1] at 0 of 5",
      "i8 I8 [2,3] by [3,1] at 0 of 6",
      "u8 U8 [2,3] by [3,1] at 0 of 7",
      "i16 I16 [2,3] by [3,1] at 0 of 8",
      "i32 I32 [2,3] by [3,1] at 0 of 9",
      "u16 U16 [2,3] by [3,1] at 0 of 10",
      "f8 F8_E4M3 [2,3] by [3,1] at 0 of 11",
      "transposed F32 [3,2] by [1,3] at 0 of 12",
      "slice F32 [2] by [3] at 16 of 13",
      "empty F32 [0,5] by [5,1] at 0 of 14",
      "scalar F32 [] by [] at 0 of 15",
      "embedding.weight F32 [3,2] by [2,1] at 0 of 16",
      "norm.weight F32 [2] by [1] at 0 of 17",
      "norm.bias F32 [2] by [1] at 0 of 18",
      "norm.running_mean F32 [2] by [1] at 0 of 19",
      "norm.running_var F32 [2] by [1] at 0 of 20",
      "norm.num_batches_tracked I64 [] by [] at 0 of 21",
      "head.weight F32 [3,2] by [2,1] at 0 of 16",
  };
  for (const char* name : {"state_dict.pt", "protocol_4.pt", "protocol_5.pt"}) {
    const auto archive = TorchArchive::open(archive_path(name));
    EXPECT_EQ(lines(archive), wanted) << name;
    archive.verify();
  }
}

TEST(TorchArchive_StateDict, ItsBytes_AreWhereTheRangesSay) {
  const auto archive = TorchArchive::open(archive_path("state_dict.pt"));
  const auto of = [&](const char* name) { return named(archive, name); };
  EXPECT_EQ(values<uint16_t>(archive, of("bf16")),
            (std::vector<uint16_t>{0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0}));
  EXPECT_EQ(values<uint16_t>(archive, of("f16")),
            (std::vector<uint16_t>{0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500}));
  EXPECT_EQ(values<int64_t>(archive, of("i64")), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values<uint8_t>(archive, of("bool")), (std::vector<uint8_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(values<float>(archive, of("c64")),
            (std::vector<float>{0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
  EXPECT_EQ(values<double>(archive, of("f64")), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values<int32_t>(archive, of("i32")), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values<uint8_t>(archive, of("f8")),
            (std::vector<uint8_t>{0, 0x38, 0x40, 0x44, 0x48, 0x4a}));
  EXPECT_EQ(values<float>(archive, of("transposed")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(values<float>(archive, of("slice")), (std::vector<float>{4, 5, 6, 7}));
  EXPECT_EQ(values<float>(archive, of("empty")), (std::vector<float>{}));
  EXPECT_EQ(values<float>(archive, of("scalar")), (std::vector<float>{42}));
  EXPECT_EQ(values<float>(archive, of("head.weight")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  // Part of a storage of 12 elements.
  EXPECT_EQ(of("slice").storage.end - of("slice").storage.begin, 48u);
  EXPECT_EQ(of("slice").bytes.begin - of("slice").storage.begin, 16u);
}

TEST(TorchArchive_StateDict, OfParameters_IsListed) {
  const auto archive = TorchArchive::open(archive_path("parameters.pt"));
  EXPECT_EQ(lines(archive), (std::vector<std::string>{"a F32 [2,2] by [2,1] at 0 of 0",
                                                      "b F32 [2,2] by [2,1] at 0 of 0",
                                                      "marked F32 [3] by [1] at 0 of 1"}));
}

TEST(TorchArchive_Walk, OfAnOptimizersState_FindsItsTensorsAndNumbers) {
  const auto archive = TorchArchive::open(archive_path("optimizer.bin"));
  EXPECT_EQ(
      text_of(archive.root()),
      "{'state': {0: {'step': <torch.float32 () by () from 0 in 0>, "
      "'exp_avg': <torch.float32 (2, 2) by (2, 1) from 0 in 1>, "
      "'exp_avg_sq': <torch.float32 (2, 2) by (2, 1) from 0 in 2>}, "
      "1: {'step': <torch.float32 () by () from 0 in 3>, "
      "'exp_avg': <torch.float32 (2) by (1) from 0 in 4>, "
      "'exp_avg_sq': <torch.float32 (2) by (1) from 0 in 5>}}, "
      "'param_groups': [{'lr': 0.001, 'betas': (0.9, 0.999), 'eps': 1e-08, 'weight_decay': 0.5, "
      "'amsgrad': False, 'maximize': False, 'foreach': None, 'capturable': False, "
      "'differentiable': False, 'fused': None, 'decoupled_weight_decay': False, "
      "'initial_lr': 0.001, 'params': [0, 1]}]}");
  const auto* first = archive.root().find("state")->items()[1];
  const auto step = archive.place("step", first->find("step")->tensor());
  EXPECT_EQ(line(step), "step F32 [] by [] at 0 of 0");
  EXPECT_EQ(values<float>(archive, step), (std::vector<float>{1}));
  EXPECT_EQ(archive.tensors(*first).size(), 3u);
  EXPECT_EQ(archive_error_of([&] { archive.tensors(); }, ErrorCode::kIo),
            archive_path("optimizer.bin") +
                ": it is not a state dict: 'state' is a dictionary, not a tensor");
  EXPECT_EQ(
      archive_error_of([&] { archive.tensors(*archive.root().find("state")); }, ErrorCode::kIo),
      archive_path("optimizer.bin") +
          ": it is not a state dict: an integer where a tensor's name is expected");
}

TEST(TorchArchive_Walk, OfASchedulersState_FindsItsNumbers) {
  EXPECT_EQ(text_of(TorchArchive::open(archive_path("scheduler.bin")).root()),
            "{'step_size': 7, 'gamma': 0.25, 'base_lrs': [0.001], 'last_epoch': 1, "
            "'_step_count': 2, '_is_initial': False, '_get_lr_called_within_step': False, "
            "'_last_lr': [0.001]}");
}

TEST(TorchArchive_Walk, OfRandomStates_FindsThem) {
  const auto archive = TorchArchive::open(archive_path("random_states.pt"));
  EXPECT_EQ(archive.root().find("step")->integer(), 3);
  const auto state = archive.root().find("random_state")->items();
  ASSERT_EQ(state.size(), 3u);
  ASSERT_EQ(state[1]->items().size(), 625u);
  EXPECT_EQ(state[1]->items()[0]->integer(), 2147483648);
  EXPECT_EQ(state[1]->items()[1]->integer(), 2796186638);
  EXPECT_EQ(state[1]->items()[624]->integer(), 624);
  EXPECT_EQ(state[2]->kind(), pickle::Kind::kNone);
  const auto seed = archive.place("seed", archive.root().find("torch_manual_seed")->tensor());
  EXPECT_EQ(seed.bytes.end - seed.bytes.begin, 5056u);
  EXPECT_EQ(archive.data()[seed.bytes.begin], 5);
}

TEST(TorchArchive_Walk, OfValuesOfEveryKind_FindsThem) {
  const auto archive = TorchArchive::open(archive_path("values.pt"));
  EXPECT_EQ(text_of(archive.root()),
            "[None, True, False, 0, 255, 256, 65535, 65536, -1, 2147483647, -2147483648, "
            "2147483648, 9223372036854775807, -9223372036854775808, 0.1, inf, 'é', '', (), (1,), "
            "[], {}, {-1: 'x'}, (2, 3), 'cpu', 'cuda:1', <torch.float32>, {'b': 1, 'a': 2}, "
            "<storage 0 on cpu: 6 bytes of torch.int16>, <storage 1 on cpu: 8 bytes of anything>]");
  const ByteRange range = archive.place(archive.root().items()[28]->storage());
  EXPECT_EQ(std::string(archive.data() + range.begin, archive.data() + range.end), "\0\0\1\0\2\0"s);
}

TEST(TorchArchive_Refusals, OfOtherGlobals_NameThem) {
  const auto global = [](const std::string& file, int byte, const std::string& name) {
    return fmt::format(
        "{}: its pickle, byte {}: the global '{}' is not allowed: only tensors, containers and "
        "numbers are supported",
        file, byte, name);
  };
  EXPECT_EQ(archive_refusal("system.pt"), global("system.pt", 13, "posix.system"));
  EXPECT_EQ(archive_refusal("eval.pt"), global("eval.pt", 13, "__builtin__.eval"));
  EXPECT_EQ(archive_refusal("numpy.pt"),
            global("numpy.pt", 13, "numpy._core.multiarray._reconstruct"));
  EXPECT_EQ(archive_refusal("module.pt"), global("module.pt", 2, "torch.nn.modules.linear.Linear"));
}

TEST(TorchArchive_Refusals, OfOtherFormats_SayWhatTheyAre) {
  EXPECT_EQ(archive_refusal("old_format.pt", ErrorCode::kUnsupported),
            "old_format.pt: it is in the format that torch.save wrote before PyTorch 1.6, which is "
            "not supported");
  EXPECT_EQ(archive_refusal("script.pt", ErrorCode::kUnsupported),
            "script.pt: it is a TorchScript program (it has "
            "'script/code/__torch__/torch/nn/functional.py'), not a state dict");
  EXPECT_EQ(
      bytes_refusal(std::string(257, '\0') + "ustar", ErrorCode::kUnsupported),
      "m.pt: it is a tar file, as the first versions of PyTorch wrote, which is not supported");
  EXPECT_EQ(bytes_refusal("\x80\x02}.", ErrorCode::kUnsupported),
            "m.pt: it is a bare pickle, not an archive written by torch.save");
  EXPECT_EQ(bytes_refusal("version https://git-lfs.github.com/spec/v1\n"),
            "m.pt: it is a Git LFS pointer to a file, not the file");
  EXPECT_EQ(bytes_refusal("hello"),
            "m.pt: it is not a PyTorch file: torch.save writes zip archives");
  EXPECT_EQ(bytes_refusal(""), "m.pt: the file is empty");
  EXPECT_THROW(TorchArchive::open(archive_path("none.pt")), Error);
}

TEST(TorchArchive_Refusals, OfWhatCannotBeRepresented_SayWhy) {
  EXPECT_EQ(archive_refusal("conj.pt").substr(0, 7), "conj.pt");
  EXPECT_NE(archive_refusal("conj.pt").find("a tensor is marked as the conjugate"),
            std::string::npos);
  EXPECT_NE(archive_refusal("big_number.pt").find("an integer of 9 bytes"), std::string::npos);
  EXPECT_EQ(archive_refusal("itself.pt"), "itself.pt: its pickle: a container holds itself");
  EXPECT_EQ(
      archive_error_of([] { TorchArchive::open(archive_path("complex128.pt")).tensors(); },
                       ErrorCode::kUnsupported),
      archive_path("complex128.pt") + ": tensor 'w': its type torch.complex128 is not supported");
  EXPECT_EQ(
      archive_error_of([] { TorchArchive::open(archive_path("expanded.pt")).tensors(); },
                       ErrorCode::kIo),
      archive_path("expanded.pt") +
          ": tensor 'w': it has 1000 elements, more than its storage, which is not supported: call "
          "contiguous() before saving it");
  EXPECT_NE(archive_refusal("no_checksums.pt").find("its checksum is"), std::string::npos);
}

// An archive as torch.save writes it, with other entries.
std::vector<ZipEntry> entries_with(const std::string& name, const std::string& data) {
  std::vector<ZipEntry> entries{
      {"m/data.pkl", "\x80\x02}."}, {"m/byteorder", "little"}, {"m/version", "3\n"}};
  for (auto& entry : entries)
    if (entry.name == name) {
      entry.data = data;
      return entries;
    }
  entries.push_back({name, data});
  return entries;
}

TEST(TorchArchive_Layout, WithoutAByteOrder_IsLittleEndian) {
  EXPECT_EQ(bytes_refusal(zip_bytes({{"m/data.pkl", "\x80\x02}."}, {"m/version", "3\n"}})),
            "no error");
  EXPECT_EQ(bytes_refusal(zip_bytes(entries_with("m/byteorder", "little"))), "no error");
}

TEST(TorchArchive_Layout, OtherByteOrdersAndVersions_AreRefused) {
  const auto with = [](const std::string& name, const std::string& data, ErrorCode code) {
    return bytes_refusal(zip_bytes(entries_with(name, data)), code);
  };
  EXPECT_EQ(with("m/byteorder", "big", ErrorCode::kUnsupported),
            "m.pt: its numbers are big-endian, which is not supported");
  EXPECT_EQ(with("m/byteorder", "middle", ErrorCode::kIo), "m.pt: its byte order is 'middle'");
  EXPECT_EQ(with("m/version", "11\n", ErrorCode::kUnsupported),
            "m.pt: its format has version 11; only versions up to 10 are supported");
  for (const char* version : {"", "\n", "x", "3x", "-3", "0", "99999999999"})
    EXPECT_NE(with("m/version", version, ErrorCode::kIo).find("which is not a number"),
              std::string::npos);
  EXPECT_EQ(with("m/version", std::string(65, '1'), ErrorCode::kIo),
            "m.pt: entry 'm/version' has 65 bytes, more than 64");
}

TEST(TorchArchive_Layout, OtherEntriesThanTorchSaves_AreRefused) {
  EXPECT_EQ(bytes_refusal(zip_bytes({})),
            "m.pt: it is not a PyTorch file: torch.save writes zip "
            "archives");
  EXPECT_EQ(bytes_refusal(zip_bytes({{"a.txt", "x"}})),
            "m.pt: entry 'a.txt' is not in a folder as torch.save writes it");
  EXPECT_EQ(bytes_refusal(zip_bytes({{std::string(256, 'f') + "/version", "3"}})).substr(0, 14),
            "m.pt: entry 'f");
  EXPECT_EQ(
      bytes_refusal(zip_bytes({{"a/x", "x"}})),
      "m.pt: entry 'a/version' is missing: this is a zip archive, but torch.save did not write it");
  EXPECT_EQ(bytes_refusal(zip_bytes(entries_with("n/x", "x"))),
            "m.pt: entry 'n/x' is outside the folder 'm/'");
  EXPECT_EQ(bytes_refusal(zip_bytes(entries_with("m/constants.pkl", "x")), ErrorCode::kUnsupported),
            "m.pt: it is a TorchScript program (it has 'm/constants.pkl'), not a state dict");
  // A zip bomb is refused before any of it is read.
  EXPECT_NE(bytes_refusal(zip_bytes({{"m/data.pkl", "x", 0x0808, 8}})).find("it is compressed"),
            std::string::npos);
}

// A state dict with one float32 tensor 'w' in a storage '0' of `elements` declared elements.
std::string pickled_tensor(const std::string& elements, const std::string& offset_shape_strides) {
  return "\x80\x02}\x8c\1wctorch._utils\n_rebuild_tensor_v2\n((\x8c\7storagectorch\nFloatStorage\n"
         "\x8c\1"
         "0\x8c\3cpu" +
         elements + "tQ" + offset_shape_strides + "\x89}tRs.";
}

std::string placed(const std::string& elements, const std::string& offset_shape_strides,
                   size_t bytes = 24) {
  return bytes_refusal(
      torch_bytes(pickled_tensor(elements, offset_shape_strides), {std::string(bytes, 'x')}));
}

TEST(TorchArchive_Storages, WhoseSizeThePickleLiesAbout_AreRefused) {
  const std::string all = "K\0K\6\x85K\1\x85"s;
  EXPECT_EQ(placed("K\6", all), "no error");
  EXPECT_EQ(placed("K\7", all),
            "m.pt: storage '0': it should have 28 bytes, but entry 'm/data/0' has 24");
  EXPECT_EQ(placed("K\6", all, 23),
            "m.pt: storage '0': it should have 24 bytes, but entry 'm/data/0' has 23");
  EXPECT_EQ(bytes_refusal(torch_bytes(pickled_tensor("K\6", all))),
            "m.pt: storage '0': entry 'm/data/0' is missing");
}

TEST(TorchArchive_Storages, ThatTensorsLeave_AreErrors) {
  const std::string leaves =
      "m.pt: tensor 'w': its shape and strides leave its storage of 24 bytes";
  const std::string big = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";  // 2^63 - 1
  EXPECT_EQ(placed("K\6", "K\1K\5\x85K\1\x85"), "no error");
  EXPECT_EQ(placed("K\6", "K\1K\6\x85K\1\x85"), leaves);
  EXPECT_EQ(placed("K\6", "K\0K\3\x85K\3\x85"s), leaves);
  EXPECT_EQ(placed("K\6", "K\0K\2K\3\x86K\4K\1\x86"s), leaves);
  EXPECT_EQ(placed("K\6", "K\6))"), leaves);
  EXPECT_EQ(placed("K\6", "K\7))"),
            "m.pt: tensor 'w': it begins at element 7, outside its storage of 24 bytes");
  EXPECT_EQ(placed("K\6", big + "))"),
            "m.pt: tensor 'w': it begins at element 9223372036854775807, outside its storage of 24 "
            "bytes");
  EXPECT_EQ(placed("K\6", "K\0K\2\x85"s + big + "\x85"), leaves);
  EXPECT_EQ(placed("K\6", "K\0K\2K\2\x86"s + big + big + "\x86"), leaves);
  EXPECT_EQ(placed("K\6", "K\0"s + big + "\x85K\0\x85"s),
            "m.pt: tensor 'w': its shape has more than 2^63 bytes");
  EXPECT_EQ(placed("K\6", "K\0K\7\x85K\0\x85"s),
            "m.pt: tensor 'w': it has 7 elements, more than its storage, which is not supported: "
            "call contiguous() before saving it");
}

TEST(TorchArchive_Storages, OfTensorsWithoutElements_MayBeEmpty) {
  const std::string big = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
  EXPECT_EQ(placed("K\0"s, "K\0K\0\x85K\1\x85"s, 0), "no error");
  EXPECT_EQ(placed("K\6", "K\6K\0K\3\x86K\3K\1\x86"s), "no error");
  EXPECT_EQ(placed("K\6", "K\0K\0\x85"s + big + "\x85"), "no error");
  EXPECT_EQ(placed("K\6", "K\7K\0\x85K\1\x85"s),
            "m.pt: tensor 'w': it begins at element 7, outside its storage of 24 bytes");
  EXPECT_EQ(placed("K\6", "K\0K\0"s + big + "\x86K\1K\1\x86"),
            "m.pt: tensor 'w': its shape has more than 2^63 bytes");
}

TEST(TorchArchive_Checksums, OfTensors_AreComparedOnRequest) {
  std::string bytes =
      torch_bytes(pickled_tensor("K\6", "K\0K\6\x85K\1\x85"s), {"abcdefghijklmnopqrstuvwx"});
  bytes[bytes.find("abcdef")] = 'A';
  const TorchArchive archive(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "m.pt");
  EXPECT_EQ(archive.tensors().size(), 1u);
  EXPECT_NE(archive_error_of([&] { archive.verify(); }, ErrorCode::kIo)
                .find("m.pt: entry 'm/data/0': its checksum is "),
            std::string::npos);
}

TEST(TorchArchive_Checksums, OfThePickle_AreComparedAtOpening) {
  std::string bytes =
      torch_bytes(pickled_tensor("K\6", "K\0K\6\x85K\1\x85"s), {std::string(24, 'x')});
  bytes[bytes.find("cpu")] = 'g';
  EXPECT_NE(bytes_refusal(bytes).find("entry 'm/data.pkl': its checksum is "), std::string::npos);
}

TEST(TorchArchive_Damage, EveryTruncation_IsAnError) {
  for (const char* name : {"parameters.pt", "optimizer.bin"}) {
    const std::string good = archive_bytes(archive_path(name));
    ASSERT_GT(good.size(), 1000u);
    for (size_t size = 0; size < good.size(); ++size)
      EXPECT_TRUE(bytes_refusal(good.substr(0, size)).starts_with("m.pt: ")) << size;
  }
}

// Flips in the data and in unused fields (times, attributes) are not errors; none does harm.
TEST(TorchArchive_Damage, EveryBitFlip_IsHandled) {
  const std::string good = archive_bytes(archive_path("parameters.pt"));
  size_t accepted = 0;
  for (size_t i = 0; i < good.size() * 8; ++i) {
    std::string damaged = good;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << i % 8));
    const std::vector<uint8_t> exact(damaged.begin(), damaged.end());
    try {
      const TorchArchive archive(exact.data(), exact.size(), "m.pt");
      EXPECT_EQ(lines(archive).size(), 3u);
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, good.size() * 8);
}

}  // namespace
}  // namespace coupler::formats
