"""Captions in text files: the official Flickr8k and Flickr30k, and Kaggle's."""

import pytest
from captioner.datasets import fails, kaggle, names_of, official, photograph, write
from keras_attention_apps.captioner.data.dataset import read_dataset
from keras_attention_apps.captioner.data.layouts import CaptionedImage

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


def test_official_keeps_the_order_of_the_split_file(tmp_path):
    official(tmp_path)
    assert read_dataset(tmp_path, "train") == [
        CaptionedImage(tmp_path / "Flicker8k_Dataset/c.jpg", ("A cat .",), "c"),
        CaptionedImage(
            tmp_path / "Flicker8k_Dataset/a.jpg",
            ("A dog runs .", "A dog , running"),
            "a",
        ),
    ]
    assert names_of(read_dataset(str(tmp_path), "test")) == ["d.jpg"]


@pytest.mark.parametrize(
    "folder",
    [
        "Flicker8k_Dataset",
        "Flickr8k_Dataset",
        "flickr30k-images",
        "images",
        "Images",
        "Flickr8k_Dataset/Flicker8k_Dataset",
        "Images/Images",
        ".",
    ],
)
def test_official_finds_the_images(tmp_path, folder):
    official(tmp_path, photographs=folder)
    assert read_dataset(tmp_path, "dev")[0].path == tmp_path / folder / "b.jpg"


@pytest.mark.parametrize("given", [".", "Flickr8k_text", "Flicker8k_Dataset"])
def test_official_finds_texts_in_a_folder_of_their_own(tmp_path, given):
    official(tmp_path, texts=tmp_path / "Flickr8k_text")
    (image,) = read_dataset(tmp_path / given, "dev")
    assert image.path == tmp_path / "Flicker8k_Dataset/b.jpg"


def test_official_reads_the_files_of_flickr30k(tmp_path):
    write(tmp_path / "results_20130124.token", "1.jpg#0\tOne .\n")
    write(tmp_path / "flickr30k_trainImages.txt", "1.jpg\n")
    photograph(tmp_path / "flickr30k-images", "1.jpg")
    assert read_dataset(tmp_path, "train")[0].captions == ("One .",)


def test_official_ignores_lemmas_and_hidden_files(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr8k.lemma.token.txt", "b.jpg#0\tzwei Hund .\n")
    write(tmp_path / "._Flickr8k.token.txt", b"\x00\xff")
    assert read_dataset(tmp_path, "dev")[0].captions == ("Zwei Hünde .",)


def test_split_file_may_have_a_byte_order_mark_and_blank_lines(tmp_path):
    official(tmp_path)
    write(
        tmp_path / "Flickr_8k.trainImages.txt",
        b"\xef\xbb\xbfa.jpg  \r\n\r\n c.jpg\r\na.jpg\r\n\n",
    )
    assert names_of(read_dataset(tmp_path, "train")) == ["a.jpg", "c.jpg"]


def test_token_file_may_have_a_byte_order_mark_and_blank_lines(tmp_path):
    official(tmp_path)
    write(
        tmp_path / "Flickr8k.token.txt",
        b"\xef\xbb\xbfb.jpg#0\tOne.\r\n\r\nb.jpg#1\tTwo\xe2\x80\xa8parts.\r\n",
    )
    (image,) = read_dataset(tmp_path, "dev")
    assert image.captions == ("One.", "Two\u2028parts.")


def test_known_bad_line_of_flickr8k_changes_nothing(tmp_path):
    official(tmp_path)
    with open(tmp_path / "Flickr8k.token.txt", "a") as file:
        file.write("2258277193_586949ec62.jpg.1#0\tPeople waiting .\n")
    assert names_of(read_dataset(tmp_path, "train")) == ["c.jpg", "a.jpg"]


def test_images_and_captions_without_text_are_dropped(tmp_path):
    official(tmp_path)
    write(tmp_path / "Flickr8k.token.txt", "a.jpg#0\t  \na.jpg#1\tA .\nc.jpg#0\t\n")
    write(tmp_path / "Flickr_8k.trainImages.txt", "a.jpg\nc.jpg\nnever-captioned.jpg\n")
    (image,) = read_dataset(tmp_path, "train")
    assert (image.path.name, image.captions) == ("a.jpg", ("A .",))


@pytest.mark.parametrize("line", ["b.jpg A dog .", "b.jpg#0 A dog .", "b.jpg\tA dog ."])
def test_official_names_a_broken_line(tmp_path, line):
    official(tmp_path)
    write(tmp_path / "Flickr8k.token.txt", f"a.jpg#0\tA .\n{line}\n")
    fails(
        tmp_path,
        with_message="Flickr8k.token.txt, line 2: expected name#number<TAB>caption, "
        f"but found {line + chr(10)!r}",
    )


def test_official_names_the_missing_split_file(tmp_path):
    official(tmp_path)
    (tmp_path / "Flickr_8k.testImages.txt").unlink()
    fails(
        tmp_path,
        "test",
        with_message="expected a file *testImages.txt for the split test, but found "
        "Flicker8k_Dataset, Flickr8k.token.txt, Flickr_8k.devImages.txt, ",
    )


def test_official_files_without_splits_get_those_of_kaggle(tmp_path):
    names = [f"{number}.jpg" for number in range(20)]
    captions = "".join(f"{name}#{n}\tA dog .\n" for name in names for n in range(2))
    write(tmp_path / "official/results_20130124.token", captions)
    photograph(tmp_path / "official/flickr30k-images", *names)
    kaggle(tmp_path / "kaggle", "".join(f"{name},A dog .\n" for name in names))

    for split in ("train", "dev", "test"):
        images = read_dataset(tmp_path / "official", split)
        assert {image.captions for image in images} == {("A dog .", "A dog .")}
        assert names_of(images) == names_of(read_dataset(tmp_path / "kaggle", split))


def test_two_files_for_one_purpose_are_refused(tmp_path):
    official(tmp_path)
    write(tmp_path / "results_20130124.token")
    fails(
        tmp_path,
        with_message="expected one file *.token.txt or *.token, but found "
        "Flickr8k.token.txt, results_20130124.token",
    )


def test_kaggle_reads_commas_and_quotes(tmp_path):
    kaggle(
        tmp_path,
        'a.jpg,"A sign , it says ""stop"" ."\n'
        "a.jpg,A dog , wet , runs .\n"
        'a.jpg,A "stop" sign .\n'
        "\n"
        "a.jpg,\n"
        "a.jpg, A cat .\n",
    )
    images = read_dataset(tmp_path, "train", validation_share=0)
    assert images == [
        CaptionedImage(
            tmp_path / "Images/a.jpg",
            (
                'A sign , it says "stop" .',
                "A dog , wet , runs .",
                'A "stop" sign .',
                "A cat .",
            ),
            "a",
        )
    ]


@pytest.mark.parametrize("name", ["results.csv", "captions.txt"])
def test_kaggle_reads_the_table_of_flickr30k(tmp_path, name):
    photograph(tmp_path / "flickr30k_images" / "flickr30k_images", "1.jpg", "2.jpg")
    write(
        tmp_path / name,
        "image_name| comment_number| comment\n"
        '1.jpg| 0| A "stop" sign , red .\n'
        "1.jpg| 1|  A sign | a post .\n"
        "\n"
        # As in the data set.
        "2.jpg| 4   A dog runs across the grass .\n",
    )
    found = read_dataset(tmp_path, "train", validation_share=0)
    assert [image.captions for image in found] == [
        ('A "stop" sign , red .', "A sign | a post ."),
        ("A dog runs across the grass .",),
    ]
    write(tmp_path / name, "image_name|comment_number|comment\n1.jpg|A sign\n")
    fails(tmp_path, with_message="line 2: expected image_name|comment_number|comment")


def test_kaggle_reads_the_columns_of_flickr30k(tmp_path):
    photograph(tmp_path / "Images", "1.jpg")
    content = (
        'image_name,comment_number,comment\n1.jpg,0,"One, two ."\n1.jpg,1,A, b .\n'
    )
    write(tmp_path / "captions.txt", content)
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("One, two .", "A, b .")


def test_another_table_of_results_is_no_data_set(tmp_path):
    kaggle(tmp_path, "a.jpg,A .\n")
    (tmp_path / "captions.txt").rename(tmp_path / "metadata.csv")
    write(tmp_path / "results.csv", "epoch,loss\n1,2\n")
    content = "file_name,text\nImages/a.jpg,A dog\n"
    write(tmp_path / "metadata.csv", content)
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("A dog",)


def test_kaggle_tolerates_bom_crlf_and_lower_case_folder(tmp_path):
    photograph(tmp_path / "images", "a.jpg")
    write(tmp_path / "captions.txt", b"\xef\xbb\xbfImage, Caption\r\na.jpg,One .\r\n")
    (image,) = read_dataset(tmp_path, "train", validation_share=0)
    assert image.captions == ("One .",)


def test_kaggle_leaves_out_the_known_bad_name(tmp_path, capsys):
    kaggle(tmp_path, "a.jpg,A .\n")
    with open(tmp_path / "captions.txt", "a") as file:
        file.write("2258277193_586949ec62.jpg.1,People waiting .\n")
    images = read_dataset(tmp_path, "train", validation_share=0)
    assert names_of(images) == ["a.jpg"]
    assert "'2258277193_586949ec62.jpg.1'" in capsys.readouterr().err


def test_kaggle_uses_split_files_where_there_are_some(tmp_path):
    kaggle(tmp_path, "a.jpg,A .\nb.jpg,B .\nc.jpg,C .\n")
    write(tmp_path / "Flickr_8k.trainImages.txt", "c.jpg\na.jpg\n")
    write(tmp_path / "Flickr_8k.testImages.txt", "b.jpg\n")
    assert names_of(read_dataset(tmp_path, "train")) == ["c.jpg", "a.jpg"]
    assert names_of(read_dataset(tmp_path, "test")) == ["b.jpg"]
    fails(tmp_path, "dev", with_message="expected a file *devImages.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "file;text\na.jpg;A .\n",
            "line 1: expected the header image,caption or image_name|comment_number|"
            "comment, but found 'file;text'",
        ),
        (
            "image,caption\na.jpg,A .\n\nb.jpg\n",
            "line 4: expected image,caption on one line, but found 'b.jpg'",
        ),
        (
            'image,caption\na.jpg,"Stop .\nb.jpg,B .\n',
            "line 2: expected image,caption on one line, but found 'a.jpg,Stop .",
        ),
        (
            'image,caption\na.jpg,A .\nb.jpg,"' + "long" * 40_000,
            "line 3: expected CSV, but found a mistake (field larger than",
        ),
    ],
    ids=["header", "column", "quote", "field"],
)
def test_kaggle_names_a_broken_line(tmp_path, content, message):
    write(tmp_path / "captions.txt", content)
    fails(tmp_path, with_message=f"captions.txt, {message}")


def test_kaggle_with_nothing_but_a_header_is_refused(tmp_path):
    kaggle(tmp_path, "")
    fails(tmp_path, with_message="captions with a word for the split train")
