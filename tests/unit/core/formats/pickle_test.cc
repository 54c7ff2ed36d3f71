#include "formats/pickle.h"

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "first_line.h"
#include "pickle_text.h"

namespace coupler::pickle {
namespace {

using coupler::testing::first_line;
using coupler::testing::text_of;
using namespace std::string_literals;

// The content of a pickle, as Python would print it, or the message of the error from reading it.
std::string shown_pickle(const std::string& bytes) {
  // An exact-size heap copy, so that the address sanitizer detects reads past the end.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  try {
    return text_of(*read({exact.data(), exact.size()}, "m.pt"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_EQ(error.detail().subject, "m.pt");
    EXPECT_FALSE(error.detail().hint.empty());
    return first_line(error);
  }
}

// The opcodes between the protocol number and the end.
std::string run(const std::string& instructions) {
  return shown_pickle("\x80\x02" + instructions + ".");
}

std::string refused(size_t byte, const std::string& rule) {
  return "m.pt: its pickle, byte " + std::to_string(byte) + ": " + rule;
}

const std::string kTensor = "ctorch._utils\n_rebuild_tensor_v2\n";
const std::string kTensorOfType = "ctorch._utils\n_rebuild_tensor_v3\n";
const std::string kOrdered = "ccollections\nOrderedDict\n)R";

std::string string(const std::string& text) {
  return "\x8c"s + static_cast<char>(text.size()) + text;
}

std::string storage(const std::string& type, const std::string& elements) {
  return "(" + string("storage") + "c" + type + "\n" + string("7") + string("cpu") + elements +
         "tQ";
}

// A tensor with the given arguments after the storage.
std::string tensor(const std::string& arguments) { return kTensor + "(" + arguments + "tR"; }

const std::string kFloats = storage("torch\nFloatStorage", "K\x06");

TEST(Pickle_Literals, OfEveryWidth_AreRead) {
  EXPECT_EQ(run("N"), "None");
  EXPECT_EQ(run("\x88"), "True");
  EXPECT_EQ(run("\x89"), "False");
  EXPECT_EQ(run("K\xff"), "255");
  EXPECT_EQ(run("M\xff\xff"), "65535");
  EXPECT_EQ(run("J\xff\xff\xff\xff"), "-1");
  EXPECT_EQ(run("\x8a\0"s), "0");
  EXPECT_EQ(run("\x8a\1\xff"), "-1");
  EXPECT_EQ(run("\x8a\2\xff\0"s), "255");
  EXPECT_EQ(run("\x8a\x08\0\0\0\0\0\0\0\x80"s), "-9223372036854775808");
  EXPECT_EQ(run("\x8b\1\0\0\0\x7f"s), "127");
  EXPECT_EQ(run("G\xbf\xf8\0\0\0\0\0\0"s), "-1.5");
  EXPECT_EQ(run("X\2\0\0\0\xc3\xa9"s), "'é'");
  EXPECT_EQ(run("\x8d\1\0\0\0\0\0\0\0a"s), "'a'");
  EXPECT_EQ(run("C\1\xff"), "b'\\xff'");
  EXPECT_EQ(run("B\1\0\0\0a"s), "b'a'");
  EXPECT_EQ(run("\x8e\1\0\0\0\0\0\0\0a"s), "b'a'");
}

TEST(Pickle_Literals, NumbersOver64Bits_AreRefused) {
  EXPECT_EQ(run("\x8a\x09\0\0\0\0\0\0\0\x80\0"s),
            refused(2, "an integer of 9 bytes exceeds the supported 8"));
  EXPECT_EQ(run("\x8b\xff\xff\xff\xff"),
            refused(2, "an integer of 4294967295 bytes exceeds the supported 8"));
}

TEST(Pickle_Literals, StringsThatAreNotUtf8_AreRefused) {
  for (const char* bytes : {"\xff", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\x80",
                            "\xf4\x90\x80\x80", "\xf0\x80\x80\x80", "a\xe2\x82"})
    EXPECT_EQ(run(string(bytes)), refused(2, "a string is not valid UTF-8"));
  EXPECT_EQ(run(string("\xf0\x9f\x98\x80\xed\x9f\xbf")), "'\xf0\x9f\x98\x80\xed\x9f\xbf'");
}

TEST(Pickle_Containers, OfEveryKind_KeepTheirOrder) {
  EXPECT_EQ(run(")"), "()");
  EXPECT_EQ(run("NK\1\x86"), "(None, 1)");
  EXPECT_EQ(run("K\1\x85"), "(1,)");
  EXPECT_EQ(run("K\1K\2K\3\x87"), "(1, 2, 3)");
  EXPECT_EQ(run("(K\1K\2K\3K\4t"), "(1, 2, 3, 4)");
  EXPECT_EQ(run("](K\2K\1e"), "[2, 1]");
  EXPECT_EQ(run("]K\2a"), "[2]");
  EXPECT_EQ(run("}(" + string("b") + "K\1" + string("a") + "K\2u"), "{'b': 1, 'a': 2}");
  EXPECT_EQ(run("}K\1Ns"), "{1: None}");
  EXPECT_EQ(run(kOrdered + "K\1Ns"), "{1: None}");
}

TEST(Pickle_Containers, Sets_AreListsOfTheirMembers) {
  // Function calls in protocols 2 and 3, opcodes in protocol 4.
  EXPECT_EQ(run("c__builtin__\nset\n](K\1K\2e\x85R"), "[1, 2]");
  EXPECT_EQ(run("cbuiltins\nset\n]\x85R"), "[]");
  EXPECT_EQ(run("cbuiltins\nset\n)R"), "[]");
  EXPECT_EQ(run("c__builtin__\nfrozenset\n]K\1a\x85R"), "[1]");
  EXPECT_EQ(run(string("builtins") + string("frozenset") + "\x93]K\1a\x85R"), "[1]");
  EXPECT_EQ(run("\x8f"), "[]");
  EXPECT_EQ(run("\x8f(" + string("a") + string("b") + "\x90"), "['a', 'b']");
  EXPECT_EQ(run("(K\1K\2\x91"), "[1, 2]");
  EXPECT_EQ(run("(\x91"), "[]");
}

TEST(Pickle_Containers, SetsOfOtherThanAList_AreRefused) {
  const std::string rule = "a set has arguments that torch.save never writes";
  EXPECT_EQ(run("cbuiltins\nset\nK\1\x85R"), refused(19, rule));
  EXPECT_EQ(run("cbuiltins\nset\n]]\x86R"), refused(19, rule));
  EXPECT_EQ(run("}(K\1\x90"), refused(6, "a dictionary where a list is expected"));
  EXPECT_EQ(run("K\1\x91"), refused(4, "the start of a container is missing"));
  EXPECT_EQ(run("cbuiltins\nset\n"),
            "m.pt: its pickle: 'builtins.set' itself where a value is expected");
  // A set that contains itself.
  EXPECT_EQ(run("\x8fq\0(h\0\x90"s), "m.pt: its pickle: a container holds itself");
}

TEST(Pickle_Containers, InstructionsOnTheWrongKind_AreRefused) {
  EXPECT_EQ(run("}K\1a"), refused(5, "a dictionary where a list is expected"));
  EXPECT_EQ(run("](K\1K\1u"), refused(8, "a list where a dictionary is expected"));
  EXPECT_EQ(run("}(K\1u"), refused(6, "a dictionary's key has no value"));
  EXPECT_EQ(run("e"), refused(2, "the start of a container is missing"));
  EXPECT_EQ(run("K\1\x86"), refused(4, "a value is missing"));
  EXPECT_EQ(run("K\1(\x85t"), refused(5, "a value is missing"));  // below the mark
  EXPECT_EQ(run("NN"), refused(4, "it ends with unused values"));
  EXPECT_EQ(run("N("), refused(4, "a value is missing"));
  EXPECT_EQ(run(""), refused(2, "a value is missing"));
}

TEST(Pickle_Containers, KeysOfOtherKinds_AreRefused) {
  EXPECT_EQ(
      run("})Ns"),
      refused(5, "a tuple is the key of a dictionary; only strings and integers are supported"));
  EXPECT_EQ(run("}X\1\4\0\0"s + std::string(1025, 'k') + "Ns"),
            refused(1034, "a dictionary's key has more than 1024 bytes"));
}

TEST(Pickle_Containers, AKeyTwice_IsRefused) {
  EXPECT_EQ(run("}(" + string("a") + "N" + string("b") + "N" + string("a") + "Nu"),
            "m.pt: its pickle: a dictionary has the key 'a' twice");
  EXPECT_EQ(run("}(K\1NM\1\0Nu"s), "m.pt: its pickle: a dictionary has the key '1' twice");
  EXPECT_EQ(run("}(K\1N" + string("1") + "Nu"), "{1: None, '1': None}");
}

TEST(Pickle_Memo, ValuesStoredByEveryInstruction_AreFound) {
  EXPECT_EQ(run("]q\0K\5q\1ah\0h\1\x87"s), "([5], [5], 5)");
  EXPECT_EQ(run("]r\0\0\0\0j\0\0\0\0\x86"s), "([], [])");
  EXPECT_EQ(run("K\7\x94K\x08\x94h\0h\1\x87"s), refused(13, "it ends with unused values"));
}

TEST(Pickle_Memo, NumbersOutOfTurn_AreRefused) {
  EXPECT_EQ(run("Nq\1"), refused(3, "it stores memo entry 1 out of order"));
  EXPECT_EQ(run("Nr\xff\xff\xff\xff"), refused(3, "it stores memo entry 4294967295 out of order"));
  EXPECT_EQ(run("h\0"s), refused(2, "memo entry 0 does not exist"));
  EXPECT_EQ(run("q\0"s), refused(2, "a value is missing"));
}

TEST(Pickle_Bounds, ContainersThatHoldThemselves_AreRefused) {
  const std::string wanted = "m.pt: its pickle: a container holds itself";
  EXPECT_EQ(run("]q\0h\0a"s), wanted);
  EXPECT_EQ(run("}q\0K\1h\0s"s), wanted);
  EXPECT_EQ(run("]q\0h\0\x85\x61"s), wanted);  // through a tuple
  EXPECT_EQ(
      run("]q\0]q\1h\0ah\1a0"s),
      refused(14, "opcode 0x30 is not supported: tensors, containers and numbers do not need it"));
}

TEST(Pickle_Bounds, DeepNesting_IsRefused) {
  const auto nested = [](size_t depth) {
    return run(std::string(depth, ']') + std::string(depth - 1, 'a'));
  };
  EXPECT_EQ(nested(99), std::string(99, '[') + std::string(99, ']'));
  EXPECT_EQ(nested(101), "m.pt: its pickle: it nests deeper than 100 levels");
  EXPECT_EQ(nested(100000), "m.pt: its pickle: it nests deeper than 100 levels");
  EXPECT_EQ(run(std::string(101, '(')), refused(102, "it nests deeper than 100 levels"));
}

// Each list contains the previous one twice: a full walk would take 2^60 steps.
TEST(Pickle_Bounds, SharedContainersThatUnfoldWithoutEnd_AreRefused) {
  std::string instructions = "]q\0"s;
  for (int i = 0; i < 60; ++i) {
    const auto index = static_cast<char>(i);
    instructions += "](h"s + index + "h" + index + "eq" + static_cast<char>(i + 1);
  }
  EXPECT_EQ(run("(" + instructions + "t"),
            "m.pt: its pickle: it holds more than 8388608 values, counting shared values once per "
            "reference");
}

TEST(Pickle_Bounds, MoreValuesThanAreRead_AreRefused) {
  EXPECT_EQ(run(std::string(1 << 23, ']')),
            refused((1 << 23) - 1, "it holds more than 8388608 values"));
  EXPECT_EQ(run(std::string((1 << 23) + 1, 'N')),
            refused((1 << 23) + 2, "it holds more than 8388608 values"));
}

TEST(Pickle_Bounds, MoreBytesThanAreRead_AreRefused) {
  const std::vector<char> bytes((64 << 20) + 1);
  try {
    read({bytes.data(), bytes.size()}, "m.pt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(first_line(error), refused(0, "its 67108865 bytes exceed the limit of 67108864"));
  }
}

TEST(Pickle_Protocol, OtherThan2To5_IsRefused) {
  EXPECT_EQ(shown_pickle(""), refused(0, "it is truncated"));
  EXPECT_EQ(shown_pickle("(lp0\n."), refused(0, "it does not begin with a protocol number"));
  EXPECT_EQ(shown_pickle("\x80\1N."), refused(0, "it uses protocol 1; only 2 to 5 are supported"));
  EXPECT_EQ(shown_pickle("\x80\6N."), refused(0, "it uses protocol 6; only 2 to 5 are supported"));
  EXPECT_EQ(shown_pickle("\x80\5N.x"), refused(3, "bytes follow the pickle's end"));
  EXPECT_EQ(run("\x95\2\0\0\0\0\0\0\0N"s), "None");
  EXPECT_EQ(run("\x95\3\0\0\0\0\0\0\0N"s), refused(2, "a frame reaches past the pickle's end"));
}

TEST(Pickle_Globals, OfAnyOtherName_AreRefusedByIt) {
  const auto not_allowed = [](const std::string& name) {
    return "the global '" + name +
           "' is not allowed: only tensors, containers and numbers are supported";
  };
  EXPECT_EQ(run("cposix\nsystem\n" + string("echo") + "\x85R"),
            refused(2, not_allowed("posix.system")));
  EXPECT_EQ(run("cbuiltins\neval\n" + string("1") + "\x85R"),
            refused(2, not_allowed("builtins.eval")));
  EXPECT_EQ(run(string("os") + string("system") + "\x93"), refused(14, not_allowed("os.system")));
  EXPECT_EQ(run("cnumpy.core.multiarray\n_reconstruct\n"),
            refused(2, not_allowed("numpy.core.multiarray._reconstruct")));
  // The beginning or the end of an allowed name.
  EXPECT_EQ(run("ctorch._utils._rebuild_tensor_v2\nx\n"),
            refused(2, not_allowed("torch._utils._rebuild_tensor_v2.x")));
  EXPECT_EQ(run("cx.torch\nSize\n"), refused(2, not_allowed("x.torch.Size")));
  EXPECT_EQ(run("c\x1b[31m\nx\n"), refused(2, not_allowed("\\x1b[31m.x")));
  EXPECT_EQ(run("cposix\n"), refused(2, "it is truncated"));
}

TEST(Pickle_Globals, InPlaceOfValues_AreRefusedUnlessTypes) {
  EXPECT_EQ(run("ctorch\nbfloat16\n"), "<torch.bfloat16>");
  EXPECT_EQ(run("ccollections\nOrderedDict\n\x85"),
            "m.pt: its pickle: 'collections.OrderedDict' itself where a value is expected");
}

TEST(Pickle_Globals, InstructionsThatWouldRunSomething_AreRefused) {
  // INST, OBJ, EXT1, NEWOBJ_EX, PERSID and others.
  for (const char opcode : "io\x82\x92P0122dlSUVI\x96\x97\x98"s)
    EXPECT_EQ(run("N)("s + opcode + "posix\nsystem\n"),
              refused(5, "opcode 0x" + testing::hex(opcode) +
                             " is not supported: tensors, containers and numbers do not need it"));
}

TEST(Pickle_Calls, OfValuesOrWithoutArguments_AreRefused) {
  EXPECT_EQ(run("])R"), refused(4, "a list is called like a function"));
  EXPECT_EQ(run("ctorch\nfloat32\n)R"), refused(18, "torch.float32 is called like a function"));
  EXPECT_EQ(run("ctorch\nSize\n]R"),
            refused(15, "torch.Size has arguments that torch.save never writes"));
  EXPECT_EQ(run("ccollections\nOrderedDict\n]\x85R"),
            refused(29, "collections.OrderedDict has arguments that torch.save never writes"));
  EXPECT_EQ(run("ctorch\nSize\n" + string("a") + "\x85\x85R"),
            refused(19, "torch.Size has arguments that torch.save never writes"));
}

TEST(Pickle_Calls, SizesAndDevices_BecomeTuplesAndStrings) {
  EXPECT_EQ(run("ctorch\nSize\nK\2K\3\x86\x85R"), "(2, 3)");
  EXPECT_EQ(run("ctorch\nSize\nK\2K\3\x86\x85\x81"), "(2, 3)");
  EXPECT_EQ(run("ctorch\ndevice\n" + string("cpu") + "\x85R"), "'cpu'");
  EXPECT_EQ(run("ctorch\ndevice\n" + string("cuda") + "K\1\x86R"), "'cuda:1'");
  EXPECT_EQ(run("ctorch\ndevice\nN\x85R"),
            refused(18, "torch.device has arguments that torch.save never writes"));
}

TEST(Pickle_Attributes, OtherThanTheMetadataOfAStateDict_AreRefused) {
  const std::string metadata = "}" + string("_metadata") + "}sb";
  EXPECT_EQ(run(kOrdered + metadata), "{}");
  EXPECT_EQ(run("}" + metadata),
            refused(17, "a dictionary has attributes, which only an OrderedDict may"));
  EXPECT_EQ(run(kOrdered + "}" + string("__class__") + "Nsb"),
            refused(43, "an OrderedDict has attributes other than '_metadata'"));
  EXPECT_EQ(run(kOrdered + "Nb"),
            refused(30, "an OrderedDict has attributes other than '_metadata'"));
}

TEST(Pickle_Tensors, OfTheArgumentsThatTorchSaveWrites_AreRead) {
  EXPECT_EQ(run(kFloats), "<storage 7 on cpu: 24 bytes of torch.float32>");
  EXPECT_EQ(run(tensor(kFloats + "K\1K\2K\3\x86K\3K\1\x86\x89" + kOrdered)),
            "<torch.float32 (2, 3) by (3, 1) from 1 in 7>");
  EXPECT_EQ(run(tensor(kFloats + "K\0))\x89"s + kOrdered)), "<torch.float32 () by () from 0 in 7>");
  const std::string untyped = storage("torch.storage\nUntypedStorage", "K\x06");
  EXPECT_EQ(run(untyped), "<storage 7 on cpu: 6 bytes of anything>");
  EXPECT_EQ(run(kTensorOfType + "(" + untyped + "K\0K\3\x85K\1\x85\x89"s + kOrdered +
                "ctorch\nuint16\ntR"),
            "<torch.uint16 (3) by (1) from 0 in 7>");
}

TEST(Pickle_Tensors, Parameters_AreTheirTensors) {
  const std::string inner = tensor(kFloats + "K\0))\x89"s + kOrdered);
  const std::string wanted = "<torch.float32 () by () from 0 in 7>";
  EXPECT_EQ(run("ctorch._utils\n_rebuild_parameter\n" + inner + "\x88" + kOrdered + "\x87R"),
            wanted);
  EXPECT_EQ(run("ctorch._utils\n_rebuild_parameter_with_state\n(" + inner + "\x88" + kOrdered +
                "}K\1NstR"),
            wanted);
  EXPECT_NE(run("ctorch._utils\n_rebuild_parameter\nN\x88" + kOrdered + "\x87R")
                .find("a parameter has arguments that torch.save never writes"),
            std::string::npos);
}

TEST(Pickle_Tensors, OfOtherArguments_AreRefused) {
  const std::string untyped = storage("torch.storage\nUntypedStorage", "K\x06");
  const std::string minus_one = "J\xff\xff\xff\xff";
  const std::vector<std::string> cases{
      "NK\0))\x89"s + kOrdered,                                        // no storage
      kFloats + minus_one + "))\x89" + kOrdered,                       // a negative offset
      kFloats + "\x88))\x89" + kOrdered,                               // True as one
      kFloats + "K\0"s + minus_one + "\x85K\1\x85\x89" + kOrdered,     // a negative dimension
      kFloats + "K\0K\2\x85"s + minus_one + "\x85\x89" + kOrdered,     // a negative stride
      kFloats + "K\0K\2\x85)\x89"s + kOrdered,                         // fewer strides
      kFloats + "K\0])\x89"s + kOrdered,                               // a list as shape
      kFloats + "K\0("s + std::string(65, 'N') + "t)\x89" + kOrdered,  // too many dimensions
      kFloats + "K\0))N"s + kOrdered,                                  // no boolean
      kFloats + "K\0))\x89N"s,                                         // no hooks
      kFloats + "K\0))\x89"s,                                          // too few
      kFloats + "K\0))\x89"s + kOrdered + "NN",                        // too many
      untyped + "K\0))\x89"s + kOrdered,                               // elements of no type
  };
  for (const auto& arguments : cases)
    EXPECT_NE(run(tensor(arguments)).find("a tensor has arguments that torch.save never writes"),
              std::string::npos)
        << run(tensor(arguments));
  EXPECT_NE(run(kTensorOfType + "(" + kFloats + "K\0))\x89"s + kOrdered + "ctorch\nuint16\ntR")
                .find("a tensor has arguments that torch.save never writes"),
            std::string::npos);
  EXPECT_NE(run(kTensorOfType + "(" + untyped + "K\0))\x89"s + kOrdered + "ctorch\nSize\ntR")
                .find("a tensor has arguments that torch.save never writes"),
            std::string::npos);
}

TEST(Pickle_Tensors, ConjugatedViews_AreRefused) {
  EXPECT_EQ(run(tensor(kFloats + "K\0))\x89"s + kOrdered + "}")),
            "<torch.float32 () by () from 0 in 7>");
  EXPECT_NE(run(tensor(kFloats + "K\0))\x89"s + kOrdered + "}" + string("conj") + "\x88s"))
                .find("marked as the conjugate"),
            std::string::npos);
}

TEST(Pickle_Storages, OfOtherReferences_AreRefused) {
  const std::string wanted = "a reference to a storage has arguments that torch.save never writes";
  const std::string type = "ctorch\nFloatStorage\n";
  for (const auto& reference : std::vector<std::string>{
           "N", "()"s, string("storage"),
           "(" + string("module") + type + string("7") + string("cpu") + "K\1t",
           "(" + string("storage") + "N" + string("7") + string("cpu") + "K\1t",
           "(" + string("storage") + "ctorch\nfloat32\n" + string("7") + string("cpu") + "K\1t",
           "(" + string("storage") + type + "K\7" + string("cpu") + "K\1t",
           "(" + string("storage") + type + string(std::string(65, '7')) + string("cpu") + "K\1t",
           "(" + string("storage") + type + string("7") + "NK\1t",
           "(" + string("storage") + type + string("7") + string("cpu") + "J\xff\xff\xff\xfft",
           "(" + string("storage") + type + string("7") + string("cpu") + "t"})
    EXPECT_NE(run(reference + "Q").find(wanted), std::string::npos) << run(reference + "Q");
  EXPECT_NE(run(storage("torch\nFloatStorage", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s))
                .find("a storage cannot have 9223372036854775807 elements"),
            std::string::npos);
}

TEST(Pickle_Values, ReadAsOtherKinds_AreErrors) {
  const std::string bytes = "\x80\x02](K\1K\2e.";
  const auto root = read(bytes, "m.pt");
  const auto message = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      return first_line(error);
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { root->integer(); }), "a list where an integer is expected");
  EXPECT_EQ(message([&] { root->boolean(); }), "a list where a boolean is expected");
  EXPECT_EQ(message([&] { root->real(); }), "a list where a number is expected");
  EXPECT_EQ(message([&] { root->text(); }), "a list where a string is expected");
  EXPECT_EQ(message([&] { root->find("x"); }), "a list where a dictionary is expected");
  EXPECT_EQ(message([&] { root->tensor(); }), "a list where a tensor is expected");
  EXPECT_EQ(message([&] { root->storage(); }), "a list where a storage is expected");
  EXPECT_EQ(message([&] { root->items()[0]->items(); }),
            "an integer where a list, tuple or dictionary is expected");
  EXPECT_EQ(root->items()[1]->integer(), 2);
  EXPECT_EQ(root->items()[1]->real(), 2.0);
}

TEST(Pickle_Values, ADictionarys_AreFoundByName) {
  const std::string bytes = "\x80\x02}\x8c\1aK\1s.";
  const auto root = read(bytes, "m.pt");
  ASSERT_NE(root->find("a"), nullptr);
  EXPECT_EQ(root->find("a")->integer(), 1);
  EXPECT_EQ(root->find("b"), nullptr);
}

TEST(Pickle_Damage, EveryTruncationAndBitFlip_IsHandled) {
  const std::string good = "\x80\x02}(" + string("a") +
                           tensor(kFloats + "K\0K\2\x85q\0h\0\x89"s + kOrdered) + string("b") +
                           "](K\1Neu.";
  EXPECT_EQ(shown_pickle(good), "{'a': <torch.float32 (2) by (2) from 0 in 7>, 'b': [1, None]}");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_TRUE(shown_pickle(good.substr(0, size)).starts_with("m.pt: ")) << size;
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(shown_pickle(damaged).empty());
    }
}

}  // namespace
}  // namespace coupler::pickle
