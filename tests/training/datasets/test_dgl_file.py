"""Files of DGL's `save_graphs`, read without it."""

from __future__ import annotations

import base64
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from training.datasets import load_node_dataset
from training.datasets.dgl_file import read_dgl_graph

SAVED = {
    "coo": (
        "c-q}qeQZ=k5Z`wnEh!ZqH4q{gkB<wb0jx-`hm_tUMX^MoMm`QS_Gqj@(!xmqOVn_ffTc)Msx%lhw1|-qphty"
        "*rNTwjw3?Wcf_yX=N(hE1>JbsDAkX)9X71iDcPQ~cH*Kb~GxM9--_GuPufFC3PsC?Wh}jqnl8Qw-jo&QE-ud"
        "x(wQ&t&O$E87x*@e8-!V4NFiZlSVO&U`HD{bLA0P0{s79RULkGX3=&vxq(-Jzw)98n?-V63x%uDsuOiJnwOW"
        "t}5UWNt7K?`IePMp>=#gs;bt~j_a`YUK}dI0d*$?077{!q@>NAsk!k^8wmv_P!Gf%$rIKKz(i2i2F0_(mNWW"
        "}Je$vS~l(E7Fa2jHkRbFV__qzTMrJBH!k=x<R~N;zd_rA5ou=b`8y2Jx09YM0_Rq!9QetS_kQsGYUDLJa5S_"
        ">gZ2=mn`24{pW!^d0#{SM9o0{GmZO&hpZi7&hHqsfZLfTxeto56T11Ap`V-Y=R6frpJDxxHIK|TaU!c){@7y"
        "a-(Vr(K!JhHt2sW!<yH83y|j<IuD|xW_q0!5S6?CUNI2Br)FQp!)cv6jF5-0&f8LIgf8vw-liqOz{Jl&ZS~5"
        "R$p^Qi8Z4~5Zy4jW4Y~}~+Ogth#(SNSVfEO(WnLpWzpBz-C3OKCpK`-nV;w#eq6ZIzdk;gqcANqcKnD5h@p("
        "xjhPqhf7Q^H}AuA-FrmU&2=OWMcJ!m4zBgoPbLJK;LfX7a)*BmR*e2UAq@w~YAG&31U61#lhIkGazQL-j4(1"
        "^EtFT!%VS42QYDct6z_C(ki2dB+~)-^@Fl*#&;)CHPh+-pFXQ@;wD`f>W{1lg9^J>k6Pf^iY+9<B#>bt@gg9"
        "H{90eM1K1vt~a-|yRH2i$~yslk9z;BN4TBlH3^sIY3%zD{As%`ZpHYEkWbb9LLHU&cW`~^w%y%b?>u|hwOYI"
        "n)c7mhF4s@<grBgF74dhiKge~v)Q_}|pyw8s@q$|do;*+Z&T}nXHtpLp+LTvn&oNW>uDBrNt@-A6z=@n?G;i"
        "g_hI%K))A_JfpW^!+I16!EsauT2r%LBNwsW-b9)R^y{rNuhFBbcp>|bFW#8UwAY28{@54WHH=?ifmuwR3?Z`"
        "7}Z>(azJ`=q)?WPJ(stve{>A;0x+iTk(iLIFQNeRGlD8P!66Qr(d}zp!tF%cS)M>kbO*A%DVa!hWUmm~Qmez"
        "&$~EC_Z@e4A<*3J2^kSN8lWko!ray$TaZ#MOmVb9l!6&w(d{esp4sb3Spjb2$#mh<L$z_<-8Q1s9VC(S|NTh"
        "?hoZJL%nyBcpfHp!g-+kzoPuaUC#sCAfAWdwuLGAkn5yz`xNj)aq{~6A8i-%1}lPYQ__7#=T^SoqPPFDr^2N"
        "=NYA?z7V5hEiI^{O-{N_rekI;q$YWUIF&+Mx&szliacED+ueJdA4WGb!so!sW{yopI-7n^N%PwCK@i%M)K8K"
        "+mc^A%cAD-K{w=5Z8z3*G!A85DgvphLmr?|3dcyC~Q2ij?TgnEJ}>3*okcvaeW(y5-rJ@_!-T^<3?TkY4I@L"
        "i;}3D37;^nWtDf%}(js^jy7=O(}|&&zdBw+<vdq{E<kDK6BSF_*uGO{ez?80E`0a{C!vhwOhJ`jP$HwNF9)s"
        "MmHk&awIhhIHBCJL49d3n{PP2KETXO;`qeL`&#<3gYtL$mDV6cbZjqq15nwB_AdG@sjWyUyOL#>8l(+{QaMB"
        "-_~B^y6e>~f=+%lD;3+_?o9>nfpjBMbj{w+qEj9})??a*{lh*yTq5>ww$#7bQvXuiP~?^3)Aet3-gPd?ugS4"
        "0@tiVyL6sW#*vydyN4NW9$Cfx;x66xSW3HZe=5$xZ6zM(P*L<KcuDuXrDgIx;H06%>X?BnCiuB#j{$pIiFsA"
        "vy^>|=HjK1kJQU321Y%Zi*UlgM!p7UP<l3#9`h0sFnlDt>kba?C@2}u7f=}eP}=BpM}R92;fw@GCuE>_7eU2"
        "-MOd^-P3lrL2-TCs9@<=x7%xsqiOYeg1FcWF+syR@PBP<4+Xb9_sCJibHK&-sj7*=NlAN*i_>b8Wtc(Ot%Tk"
        "FTfgXJ0BVW!}nX-7)jHDu2JL;xYIeNQ63G"
    ),
    "csr": (
        "c-q|<ZEO@pboRIwA{CCWQnfKBrJ*)RTBPk+>g_^Btp+%hLP2A%Xc0&)729xp#GWK3wMfzeZJIy?R1y`_9#Ei"
        "4r56H(Mt>X-0!SJU6ObT*!yuH1U2osKx7``;TBH7Q((Btd^S<AkH?ynmYJWa5cS?_q@j+0rzy$mm!<)Jzy}6"
        "dL3?`0Y^e`=>NU!COz;kMN@#F=JMMlg^Yp%60=%OCRHiBFY`4x*!pi5f-{Gl0qy)LJp&KN%AGwiop^fp-JCD"
        "NMltcdnYXuob<Nd#IXP*5*xT|3{9&u)AOFnpzy`-k&{`_CQ+JS9i8gW~1L<MV-h(I2ue<tCROwZm@MuAn|;("
        "_V)mKY%zxe$pF=V^?o(Y<-Of>qh~dV*1VfM0_Ew3-QsFDwJc!2Onhl<Okv9FXVwddETO5#F0LNel_Iw*O@Wu"
        "5ceC5{10plB!4i%;QMscB8V4zw%;x#S`E6XpakL+L^%y;f3P-tuAwiuuI*lvMPF4O$>IFo#x)?H_%fH2fW4G"
        "QUDwyGcb!vZzZ7(q<XGwuN;T|?oiE3@0<eqX=jtpRES^A5c;{hGPs>5nqq(ecO;jk}Ez`w#`_j06rW@6q#M%"
        ">FhX4J+@6KIbKYQOu=Q9|`JxQ=1HRKN<?v?tA6Y-I6^L`MzzIz<>1&J;R@nzM#zMa`aKwgH*^&P0-{Jp5(QG"
        "otYwsD^1bZyuu$lW<zT&Mmc*E3D@eiv{^`$vd>7p@C=jQ-17pO_5(p?!W_KcC9$mg<+{=S8}jg}h$Ljvo;xd"
        "keRCOnZ&>m-{?I|0Q`$!+Ll3?_;nH_X*E$D%-N@6R=+&KhN1*yTFtantC_UnBU+Jf&3e1UvYvSw^%PjDDP4o"
        "XJMSRF;G7b#6#wnahaa_JH^rTGde8(>#d(1PPgWh=<O`_C?C@a^eNlEI@7)7)sFCbu^%`h@4~uG@-s!Y-;eP"
        "x5aWK5;)U?$cpi^nW(mmk<=$s3MtrExXCO}X??n7@gpcig3gpp#AwFf0eMI&&pqxac*IKw8=6;xo{vv%A*3W"
        "ijKGegp_tt`b4dn(Kv#~zKlQ#?3i|j53gZTPY_@Vx+LtHQ6WS^NwX`bvLT(*y(oQGwor#I(5&wCvI&Lfo9e>"
        "hPK{`zN%`aKA}l70mnzVgsTX3Y=LRn;Fzx9;EG%DaI3Gfx9u$@jkt_59xrE|L7CgUPPH#`8&W&EWYAPjSP!5"
        "JKqh8q52XTfEoNet2>-?-$)R4!xNF3n<^?mhO|Z-!4z(^@{XVSA;Y6IzNxyvG0>XoDU=HLg>Rdo^*?OsoJ)f"
        "$NSoG*!RI1JnsHH4&~8z_8XulzR>3Zp<fI?@~x0hBj51wW?4nqs`&S~vg-26{QRZMWw~Sr;hC2Mf?Zeli~6G"
        "HQ?d2@GU=xAdUs;o2N0)vizk25(YAE!eP=SRhpR6MdMUozq6<*x!54YGM{3RibnV%i-<tLH!&fhf@;}<h<C#"
        "kN+sgZIFP>i?H?4qklIm*T_K`!Z_?+C)fD@kw-y?{>6W3|%Mx6MGjz$CWJE$I|`$>n+N8suG;70`MiLZM(zi"
        "&jeg8+9T9m(-*s)zY6aGv}lx@*4KU|$RNmkylwzMl$tHQq0v&&0t!zuXqy<D9FT_&GxLd5fQqnsb89fYe`@L"
        "{FpXOJ=jKYssfzU3-q(xAU!IfRp`GR`U3U3US{)%IW<b38uYPyb58c`8v=A5wdHSg}%28<!R?`fqcixNBF&|"
        "?l$0LH{nF*t5F2||H&A};>X9?#_@Ej6Rg9ILa~06r23_L2w)sTCngpP_j??vPb?PdH;i;l;-?Woyx8&J`@S*"
        "OsJq&mBib81EXD@`n^Q42Mv^HK59;Wz>!k@fM|PC-bgi&E`$`LXCf)ieVf2}b9$CpiI+&)ImnjE}{jxq7zY-"
        "%c|Ax<8n6#_?PQ=T<niz9K5&rKSCPxya&msc~j8+F-6H_E7Y<Tq3C#AvUkiM}oWU#+!i!4KyW4AITNJ4DVd_"
        "~!k@`}O2NyHg!;Ezo5{7{5T%gd^3R+Yz7W7uS~sG(r^B(a+(7DfM#svMqHFCKiy_(S|>^$?&}aQ;^nI|Hu&r"
        "luQU^KGQNqXIhd9@77zR>H%dDz$ut#qK4m2kRxVGQ@j{@xHD_e|}9)Na>shW@b4g`PAHK{x93S8M*"
    ),
    "csc": (
        "c-q}qeQXp(6ra6b3xNv9ccay;K&5H0Ih1}V^>(3tp#cu1rC^jRrUbBJ1saZzq$i097D)=FO%sTKNTNpRf(42"
        "cdNE>X^pB&26d{ep01_~87=#j$_4dtsdppBjo1lL=>Gj>4dGGf==FQvL({{DI7@d{d?P7coRU9-GKh_9j?#O"
        "DaVJw@8V<3H*oITyF;a@@L<lvHtrHn;~%pTWR<4`a~JB)1vTpjflhfR<hR|@)(seFAyUR=%^LDaMScRTFXIq"
        "=eG&HAp0{!47!wyC6nED9)Sm+f6M$HHgVJ_OoxX#tN9=ZO!UJ`Q|Fp6CbV%TvJTjc3Jp$iIy196#oV+wxsOd"
        "&;JL9t+<<o}oV3HIn$%o1fU;=7Y7vKu)pa=5ZoFm)3>+m`WAm*!jUPGCsvYe8o!zfG5v8?2A0gM=`Ft{CJ&N"
        "V*~ObOOgM9kH+W^hFE%^4x0!0V$a3>QexF$+6KxXPhrHVL;u4ylV(}=!fTuFG&t;46%Y>B4{Tly_@tM!unhd"
        "AeKbvT?YhD)O^!>!U<t=jhfu0Lg^BmeGpY#uqWl%M75A4<kSD(F2$!ejFxt@zoq0`DDBn#}#C!+Gar?})syU"
        "stq!wE7$CKZYzod4?{-NqKTrc|03c%4(-&-m2)K^sGw=UxSAoBa3QP3A8xpd?gujKU|IPfT(_iT;ZJ5b5>d("
        "pn92;-yO#(BbNU%yen-8n^Er~V_?Gfng!H9XS!5%S-T>%u<9{(0A>jfVKpzYwmU$>eoQ^{ZpP0w`BKm)9%#a"
        "Ta;<x47PK`)jSgde1NPU&3QL*1Io$j=?uPCwzZ1S^cI@z<+bhY_+kb)W(TCbvw<PUmuD9{<YJusbI$^)=LUf"
        "xsJV<XMF_J&wcrj^<`d`r~XcPwBw8oNBrjA-AA&V`$_U{mUvW*Xao6-ZC{@1sDHh+XPwv&Jkj@I-6h4DA^RV"
        "~^HwD0{RHI;>Gd%@AK{!bzzyc#Wh_B{sLy93PxY@N{}|Fo_B{!BbY4hL>E|4gKXr(cM)lLg{jkr&G>jMJy;w"
        "inl{ruk->+B$_I1P!Z=QtpDL#3<xIW!o=wXoGkOm*L?>)rr5>Niw`zXzmAH>W45ta90G1}?PyUX`INqlFJ%I"
        "iP<Py_LXriu3bNCT361slFH=p1wI56M;49>{W@-`-`nfe+<$f?U~;e+u>d-wlpPanggyZN9<xlk%F)_p>M02"
        "hW8F(op+I-lu%xy^hWU)myUrnBOPeCvm(P;PtFxy--~dPovJ4_&zDyIb6>1f|$n>K5<{Fw#|omf7jP=?!!}g"
        "-a`eQc7Jh>d#4YBJn2Pt8$!PreC%6cKdt?SFK?GumM`z)9)}JSZq7vm)`>STewru$BA;>lvL1~KXFCLcRIGc"
        "V#$-;Z?m91UeZtv&ygAEx-<gQ>JuA-(xRhUg-p^3y;g@;6N2|MlTK#3O_p664pBMf6Xd};OCf!%I^8VY4&##"
        "XgmcnzA>T3V?p(##&X8v&CNzae(5v1RS>ooQtPx>Th*A?n}sQ*j%lU9=t<H{5K{RibquVV?nZ$$NjKzE`X;r"
        "KVz!u;nrPw|o5mEa8UuL=80E6%GApM<<w?-y_$lJNfDZVK;l>Z%6*9HIKW!Jm)1I@V=T>Mu-^r_t~Qb2-;{4"
        "jlyk=+9%nd-@xYC;xNb<N1vgV_w$Wg7xUp0VU+GlkY)l5Drpy<)YB{79*bCb%XEc<tE-oH{1lC{3f2{g4K%P"
        "|AUNyEO~y^X3l3JAH_OsEf(uHU8-NI2LtnHOuH)H?{Q>4K3}NcFv>AWpGFk<63_kb`_@>k?P_U^>Th+k1V0G"
        "4RK-3R={6)jsAHe@SH|WY+fmltzSOPWTTs+J;l?ki!%tOq%SQUL!F0vGOnH(t?f&$Y1RL{j^z4NRyIO8V1G("
        "L9oEw1je-|(Xk}CZy(kEc7I_R31;lOg?W8dxgNvS^^vNzIkjZSe^;sav1B@A0BRRVEI^OfZbD=Pa-Ckbb>zJ"
        "Fwr=LaBNR8hXNdU-`MGnP*-hZ#ypP=ehuetPWhJB`y$?cBk4tv}>{)eZrB3FohB*covB4=u|gTW+G<Ee+W5c"
        "ToN>Z5e#|TccM3g(dDKtNQCD@(#uOiS@p&$37ul-jD?|@0)qSBjHnXqxpXTr27s+"
    ),
}
"""Written by DGL 1.1.3 and compressed: five nodes with features k / 7 and labels, the edges below.
The first has one-hot labels, as T-Finance has, the others doubles, int32 ends and numbers of edges.
"""

EDGES = np.array([[0, 1, 2, 3, 3], [1, 2, 3, 0, 0]])
LABELS = [0, 1, 0, 0, 1]


def _write(folder: Path, layout: str, name: str = "tfinance") -> Path:
    path = folder / name
    path.write_bytes(zlib.decompress(base64.b85decode("".join(SAVED[layout]))))
    return path


@pytest.mark.parametrize("layout", SAVED)
def test_every_layout_of_edges_is_read(layout: str, tmp_path: Path) -> None:
    graph = read_dgl_graph(_write(tmp_path, layout))
    assert graph.num_nodes == 5
    assert list(graph.edges) == ["_E"]
    np.testing.assert_array_equal(
        sorted(map(tuple, graph.edges["_E"].T)), sorted(map(tuple, EDGES.T))
    )
    np.testing.assert_allclose(
        graph.node_arrays["feature"], np.arange(15).reshape(5, 3) / 7, rtol=1e-7
    )


@pytest.mark.parametrize("layout", SAVED)
def test_t_finance_is_a_dataset_by_name(layout: str, tmp_path: Path) -> None:
    path = _write(tmp_path, layout)
    dataset = load_node_dataset("tfinance", tmp_path)
    assert dataset.labels.tolist() == LABELS
    assert dataset.graph.x.dtype == np.float32
    assert dataset.relations == ("edge",)
    with zipfile.ZipFile(tmp_path / "tsocial.zip", "w") as archive:
        archive.write(path, "tsocial")
    zipped = load_node_dataset("tsocial", tmp_path)
    np.testing.assert_array_equal(zipped.graph.edge_index, dataset.graph.edge_index)


def test_a_file_that_is_cut_off_or_altered_is_refused_or_read(tmp_path: Path) -> None:
    """Whatever a byte is, the answer is a graph or a ValueError that names the file."""
    rng = np.random.default_rng(0)
    raw = _write(tmp_path, "csr").read_bytes()
    altered = [raw[:size] for size in (0, 7, 100, 4096, 4100, len(raw) - 200)]
    for _ in range(300):
        changed = bytearray(raw)
        place = int(rng.choice([*range(32), *range(4096, len(raw))]))
        changed[place] ^= 1 << int(rng.integers(8))
        altered.append(bytes(changed))
    errors, path = list[ValueError](), tmp_path / "x"
    for content in altered:
        path.write_bytes(content)
        try:
            read_dgl_graph(path)
        except ValueError as error:
            errors.append(error)
    assert all(str(path) in str(error) for error in errors)
    assert len(errors) > 150


@pytest.mark.parametrize("layout", SAVED)
def test_files_of_older_versions_number_the_layout(layout: str, tmp_path: Path) -> None:
    path = _write(tmp_path, layout)
    raw = path.read_bytes()
    at = raw.index((0xDD2E60F0F6B4A127).to_bytes(8, "little")) + 8  # the mark of a relation
    flag = int.from_bytes(raw[at : at + 8], "little")
    assert flag >> 32 == 1
    number = {1: 1, 2: 2, 4: 3}[flag & 0xFFFFFFFF].to_bytes(8, "little")
    expected = read_dgl_graph(path).edges["_E"]
    path.write_bytes(raw[:at] + number + raw[at + 8 :])
    np.testing.assert_array_equal(read_dgl_graph(path).edges["_E"], expected)


def test_nodes_without_labels_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, "coo")
    path.write_bytes(path.read_bytes().replace(b"label", b"class"))
    with pytest.raises(ValueError, match="nodes have no 'label', but class, feature"):
        load_node_dataset("tfinance", tmp_path)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "tfinance").write_bytes(b"id,label\n1,0\n")
    with pytest.raises(ValueError, match="no file of graphs at byte 0"):
        load_node_dataset("tfinance", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"put tsocial or tsocial\.zip"):
        load_node_dataset("tsocial", tmp_path)
