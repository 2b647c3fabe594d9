"""The collectives of a compiled program are read from its text."""

from absl.testing import absltest

from tests.aot import collectives

HLO = """
%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (u32[], f32[8,4])) -> (u32[], f32[8,4]) {
  %g = bf16[16,4]{1,0:T(8,128)} all-gather(%x), metadata={op_name="f/layer"}
  ROOT %t = (u32[], f32[8,4]) tuple(%i, %y)
}

%inner_if (p: (u32[], f32[8,4])) -> pred[] {
  %limit = u32[]{:T(128)} constant(28)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], s32[])) -> (s32[], s32[]) {
  %w = (u32[], f32[8,4]) while(%t0), condition=%inner_if, body=%inner_body
  %s = (f32[8]{0}, f32[2,2]{1,0}) all-reduce-start(%m, %n), to_apply=%add
  ROOT %t = (s32[], s32[]) tuple(%i, %n)
}

%outer_if (p: (s32[], s32[])) -> pred[] {
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%fused (p: f32[4]) -> f32[8] {
  ROOT %g = (f32[4], f32[8]) all-gather-start(%p), dimensions={0}
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %f = f32[8] fusion(%p), kind=kCustom, calls=%fused
  %c = f32[4] conditional(%q, %p, %p), branch_computations={%left, %right}
  ROOT %w = (s32[], s32[]) while(%t1), condition=%outer_if, body=%outer_body
}
"""


# A transfer between slices, as libtpu compiles it.
CROSSING = """
ENTRY %main (p: f32[4]) -> f32[4] {
  %a = f32[4] all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
  %s = (f32[8,4]{1,0:T(8,128)}, u32[], token[]) send(%a, %t), frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %r = (f32[8,4], u32[], token[]) recv(%t), frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
}
"""  # noqa: E501


class CollectivesTest(absltest.TestCase):

  def test_what_crosses_slices(self):
    found = [(c.kind, c.nbytes, c.crosses) for c in collectives.find(CROSSING)]
    self.assertEqual(
        found, [('all-reduce', 16, False), ('all-reduce', 128, True)]
    )

  def test_kinds_bytes_and_loops(self):
    find = {
        (c.kind, c.loops): (c.nbytes, c.times, c.source)
        for c in collectives.find(HLO)
    }
    self.assertEqual(
        find,
        {
            # The larger of operand and result: 8 * 4 bytes.
            ('all-gather', 0): (32, 1, ''),
            # 16 * 4 * 2 bytes, 28 times in every turn of a loop whose bound is
            # no constant.
            ('all-gather', 1): (128, 28, 'f/layer'),
            # Two results: (8 + 2 * 2) * 4 bytes.
            ('all-reduce', 1): (48, 1, ''),
        },
    )


if __name__ == '__main__':
  absltest.main()
