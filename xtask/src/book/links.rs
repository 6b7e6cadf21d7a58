//! The links of the built book. Pages lead to files of the repository too, which are beside `docs/` and not beside the book: the
//! book gets copies of those, so that it is whole wherever it is put.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::workspace;

/// Where the copies are in the book.
const COPIES: &str = "repository";

/// Brings what the pages lead to and is not in the book into it, and says which links are dead then.
///
/// # Errors
/// Where the book cannot be read or written, or a page leads out of the repository.
pub(crate) fn mend(book: &Path, repository: &Path) -> Result<Vec<String>> {
    for page in pages(book)? {
        let text = read(&book.join(&page))?;
        let mut mended = text.clone();
        let outside: BTreeSet<_> =
            links(&text).filter(|link| leads(&page, link).0.starts_with("..")).collect();
        for link in outside {
            let (place, _) = leads(&page, link);
            let from = place.strip_prefix("..").unwrap_or(&place);
            if from.starts_with("..") {
                bail!("{}: {link} leads out of the repository", page.display());
            }
            let copied = bring(repository, from, book)?;
            let up = "../".repeat(page.components().count() - 1);
            let fresh = format!("{up}{COPIES}/{}", copied.display());
            for attribute in ATTRIBUTES {
                mended = mended.replace(&format!("{attribute}{link}\""), &format!("{attribute}{fresh}\""));
            }
        }
        if mended != text {
            fs::write(book.join(&page), mended).with_context(|| format!("write {}", page.display()))?;
        }
    }
    dead(book)
}

/// Copies a file or a folder, which gets a page of its own; the path of what a browser opens.
fn bring(repository: &Path, from: &Path, book: &Path) -> Result<PathBuf> {
    let to = book.join(COPIES).join(from);
    let source = repository.join(from);
    if !source.is_dir() {
        let folder = to.parent().unwrap_or(book);
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        // without it the link is dead, which `dead` tells
        if source.is_file() {
            fs::copy(&source, &to).with_context(|| format!("copy {}", source.display()))?;
        }
        return Ok(from.to_owned());
    }
    workspace::copy_folder(&source, &to)?;
    let mut list =
        format!("<!DOCTYPE html><meta charset=\"utf-8\"><title>{0}</title><h1>{0}</h1>\n", from.display());
    for file in files(&to)?.iter().filter(|file| *file != Path::new("index.html")) {
        list += &format!("<p><a href=\"{0}\">{0}</a>\n", file.display());
    }
    fs::write(to.join("index.html"), list).with_context(|| format!("write into {}", to.display()))?;
    Ok(from.join("index.html"))
}

/// Links of the pages that lead nowhere.
fn dead(book: &Path) -> Result<Vec<String>> {
    let files: BTreeSet<_> = files(book)?.into_iter().collect();
    let mut texts = BTreeMap::new();
    for page in pages(book)? {
        let text = read(&book.join(&page))?;
        texts.insert(page, text);
    }
    let mut found = Vec::new();
    for (page, text) in &texts {
        for link in links(text) {
            let (place, anchor) = leads(page, link);
            let is_there = files.contains(&place);
            let has_anchor = anchor.is_empty()
                || texts.get(&place).is_none_or(|text| text.contains(&format!("id=\"{anchor}\"")));
            if !is_there || !has_anchor {
                found.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(found)
}

/// How a page names another file.
const ATTRIBUTES: [&str; 2] = ["href=\"", "src=\""];

/// The links to files; others have a scheme.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let all = ATTRIBUTES.into_iter().flat_map(|attribute| page.split(attribute).skip(1));
    let all = all.filter_map(|rest| rest.split('"').next());
    all.filter(|link| !link.is_empty() && !link.split('/').next().unwrap_or_default().contains(':'))
}

/// The file that a link of a page leads to, from the book's folder, and the anchor in it.
fn leads<'a>(page: &Path, link: &'a str) -> (PathBuf, &'a str) {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    if path.is_empty() {
        return (page.to_owned(), anchor);
    }
    let mut place = PathBuf::new();
    // the page of errors is for any folder
    let folder = if path.starts_with('/') { None } else { page.parent() };
    let parts = folder.unwrap_or(Path::new("")).components().chain(Path::new(path).components());
    for part in parts {
        match part {
            Component::Normal(name) => place.push(name),
            Component::ParentDir if place.file_name().is_some() => {
                place.pop();
            }
            Component::ParentDir => place.push(".."),
            _ => {}
        }
    }
    if place.as_os_str().is_empty() {
        place.push("index.html");
    }
    (place, anchor)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

/// The pages, by their paths in the book; copies of files are none.
fn pages(book: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = files(book)?;
    pages.retain(|file| file.extension() == Some(OsStr::new("html")));
    Ok(pages)
}

/// Every file of a folder, by its path in it.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("read {}", at.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::beside("a.html", "b.html#c", ("b.html", "c"))]
    #[case::itself("sub/a.html", "#c", ("sub/a.html", "c"))]
    #[case::above("sub/a.html", "../b.html", ("b.html", ""))]
    #[case::outside("a.html", "../examples/x.yaml", ("../examples/x.yaml", ""))]
    #[case::outside_from_below("sub/a.html", "../../deploy/x", ("../deploy/x", ""))]
    #[case::far_outside("a.html", "../../x", ("../../x", ""))]
    #[case::of_the_root("sub/a.html", "/css/x.css", ("css/x.css", ""))]
    #[case::the_root("404.html", "/", ("index.html", ""))]
    fn a_link_is_followed_from_its_page(
        #[case] page: &str,
        #[case] link: &str,
        #[case] expected: (&str, &str),
    ) {
        let (place, anchor) = leads(Path::new(page), link);
        assert_eq!((place.to_str().unwrap(), anchor), expected);
    }

    #[test]
    fn what_a_page_leads_to_outside_of_the_book_comes_into_it_and_what_is_dead_is_told() {
        let folder = workspace::target().join("book-tested");
        drop(fs::remove_dir_all(&folder));
        let (book, repository) = (folder.join("book"), folder.join("repository"));
        for (file, text) in [
            ("repository/examples/x.yaml", "a: b"),
            ("repository/deploy/charts/one/y.yaml", "c: d"),
            (
                "book/a.html",
                "<a href=\"../examples/x.yaml\"> <a href=\"../deploy/charts\"> <a href=\"sub/b.html#here\"> \
                 <a href=\"sub/b.html#gone\"> <a href=\"https://example.com/\"> <img src=\"none.png\"> <a href=\"../gone.md\">",
            ),
            ("book/sub/b.html", "<h1 id=\"here\"><a href=\"../a.html\"> <a href=\"../../examples/x.yaml\">"),
        ] {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let dead = mend(&book, &repository).unwrap();
        assert_eq!(dead, ["a.html: sub/b.html#gone", "a.html: repository/gone.md", "a.html: none.png"]);
        let (a, b) = (read(&book.join("a.html")).unwrap(), read(&book.join("sub/b.html")).unwrap());
        assert!(a.contains("href=\"repository/examples/x.yaml\""), "{a}");
        assert!(a.contains("href=\"repository/deploy/charts/index.html\""), "{a}");
        assert!(b.contains("href=\"../repository/examples/x.yaml\""), "{b}");
        let list = read(&book.join("repository/deploy/charts/index.html")).unwrap();
        assert!(list.contains("href=\"one/y.yaml\""), "{list}");
    }
}
