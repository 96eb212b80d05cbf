;;;; The site: pages with their navigation, an index for the search, and the files that chapters
;;;; refer to. No page makes a request to a server.

(in-package #:clgrpc.manual)

(defmacro file-text (name)
  "The text of the file NAME in the same folder, as it was when this file was compiled."
  (uiop:read-file-string (merge-pathnames name (or *compile-file-truename* *load-truename*))
                         :external-format :utf-8))

(defparameter *style* (file-text "manual.css") "The style of all pages.")
(defparameter *script* (file-text "manual.js") "The search.")

(defun write-text (text path)
  "Write TEXT to the file at PATH, whose directories are made."
  (ensure-directories-exist path)
  (with-open-file (stream path :direction :output :if-exists :supersede :external-format :utf-8)
    (write-string text stream)))

;;; Navigation

(defun way-up (page)
  "The relative link from PAGE of the site to the site's root."
  (format nil "~{~A~}" (make-list (count #\/ page) :initial-element "../")))

(defun navigation (chapters here up)
  "The links from the page HERE to CHAPTERS and subjects. UP is the relative path from HERE to the
site's root."
  (flet ((item (page title)
           `(:li () (:a (:href ,(concatenate 'string up page)
                         :aria-current ,(and (string= here page) "page"))
                     ,title))))
    `(:nav (:aria-label "Contents")
      (:p (:class "home") (:a (:href ,(concatenate 'string up "index.html")) "clgrpc"))
      (:label (:for "search") "Search")
      (:input (:id "search" :type "search" :autocomplete "off" :data-up ,up))
      (:ol (:id "found" :hidden t))
      (:details (:open t) (:summary () "Contents")
       ,@(loop for part in *parts*
               collect `(:h2 () ,(chapter-list-title part))
               collect `(:ul ()
                         ,@(loop for path in (chapter-list-paths part)
                                 for chapter = (find path chapters :key #'chapter-path
                                                                   :test #'string=)
                                 collect (item (chapter-file chapter) (chapter-title chapter)))))
       (:h2 () "Reference")
       (:ul ()
        ,@(loop for subject in *subjects*
                collect (item (format nil "reference/~A.html" (subject-file subject))
                              (subject-title subject))))))))

(defun page-text (title here chapters html)
  (let ((up (way-up here)))
    (with-output-to-string (stream)
      (format stream "<!doctype html>~%<html lang=\"en\">~%<head>~%")
      (page:write-markup
       `((:meta (:charset "utf-8"))
         (:meta (:name "viewport" :content "width=device-width, initial-scale=1"))
         (:meta (:name "color-scheme" :content "light dark"))
         (:title () ,(format nil "~A · clgrpc" title))
         (:link (:rel "icon" :href "data:,"))
         (:link (:rel "stylesheet" :href ,(concatenate 'string up "manual.css")))
         (:script (:src ,(concatenate 'string up "index.js") :defer t))
         (:script (:src ,(concatenate 'string up "manual.js") :defer t)))
       stream)
      (format stream "~%</head>~%<body>~%")
      (page:write-markup (navigation chapters here up) stream)
      (format stream "~%<main>~%~A~%</main>~%</body>~%</html>~%" html))))

;;; The search

(defun index-text (chapters entries)
  "The index as a script: for each section of a chapter and each entry its title, page and text."
  (let ((rows (append
               (loop for entry in entries
                     collect (list (entry-name entry) (entry-url entry)
                                   (format nil "~{~A~^ ~}"
                                           (loop for meaning in (entry-meanings entry)
                                                 collect (docstring-text
                                                          (meaning-docstring meaning))))))
               (loop for chapter in chapters
                     append (loop for (id title text) in (chapter-sections chapter)
                                  collect (list (if (string= title (chapter-title chapter))
                                                    title
                                                    (format nil "~A: ~A" (chapter-title chapter)
                                                            title))
                                                (format nil "~A#~A" (chapter-file chapter) id)
                                                text))))))
    (with-output-to-string (stream)
      (format stream "const INDEX = [~%")
      (dolist (row rows)
        (format stream "[~{~A~^,~}],~%" (mapcar #'script-string row)))
      (format stream "];~%"))))

(defun docstring-text (docstring)
  "All texts of DOCSTRING, as one string."
  (format nil "~{~A~^ ~}"
          (append (loop for (kind . contents) in (docstring-blocks docstring)
                        append (if (eq :rows kind)
                                   (loop for (name . text) in contents
                                         collect (format nil "~A ~A" name text))
                                   contents))
                  (docstring-values docstring) (docstring-conditions docstring)
                  (docstring-threads docstring))))

(defun script-string (string)
  "STRING in JavaScript's form."
  (with-output-to-string (stream)
    (write-char #\" stream)
    (loop for char across string
          do (case char
               ((#\" #\\) (format stream "\\~A" char))
               ((#\Newline #\Tab) (write-char #\Space stream))
               (#\< (write-string "\\u003c" stream))
               (t (write-char char stream))))
    (write-char #\" stream)))

;;; Files that chapters refer to

(defun file-html (path)
  "The contents of the page of the file or folder at PATH below the root."
  (let ((full (merge-pathnames path *root*)) (here (site-page path)))
    (page:markup-text
     (if (uiop:directory-exists-p full)
         `((:h1 () ,path)
           (:ul ()
            ,@(loop for file in (uiop:directory-files (uiop:ensure-directory-pathname full))
                    for name = (file-namestring file)
                    for page = (site-page (format nil "~A/~A" path name))
                    collect `(:li ()
                              (:a (:href ,(concatenate 'string (way-up here) page)) ,name)))))
         `((:h1 () ,path)
           (:pre () ,(uiop:read-file-string full :external-format '(:utf-8 :replacement #\?))))))))

(defun write-files (directory chapters)
  "Write into DIRECTORY a page of each file that a page refers to. Such a page may refer to further
files."
  (let ((written (make-hash-table :test 'equal)))
    (loop for path = (loop for path being the hash-keys of *files*
                           unless (gethash path written) return path)
          while path
          do (setf (gethash path written) t)
             (let* ((page (site-page path)) (target (merge-pathnames page directory)))
               (if (uiop:string-suffix-p page ".html")
                   (write-text (page-text path page chapters (file-html path)) target)
                   (progn (ensure-directories-exist target)
                          (uiop:copy-file (merge-pathnames path *root*) target)))))))

;;; All of it

(defun name-table (entries)
  "A table from the names, with their packages, of all ENTRIES to the entries."
  (let ((table (make-hash-table :test 'equal)))
    (dolist (entry entries table)
      (let ((name (entry-name entry)))
        (setf (gethash (concatenate 'string (entry-package entry) name) table) entry)
        (when (string= "grpc:" (entry-package entry))
          (setf (gethash (concatenate 'string "clgrpc:" name) table) entry))))))

(defun index-html ()
  "The contents of the first page: README.md."
  (relink (number-headings (html-of (merge-pathnames "README.md" *root*))) "" ""))

(defun write-manual (directory &key (root (asdf:system-source-directory "clgrpc")))
  "Write the manual of the project in ROOT into DIRECTORY, a pathname, as a site. Return the number
of the manual's entries. This needs the program cmark-gfm. Signal an error if a link leads nowhere."
  (let* ((*root* root) (*files* (make-hash-table :test 'equal))
         (entries (collect-entries)) (*names* (name-table entries))
         (*prefixes* (subject-prefixes '()))
         (directory (uiop:ensure-directory-pathname directory))
         (chapters (mapcar #'read-chapter (chapter-paths))))
    (flet ((write-page (title page html)
             (write-text (page-text title page chapters html) (merge-pathnames page directory))))
      (write-text *style* (merge-pathnames "manual.css" directory))
      (write-text *script* (merge-pathnames "manual.js" directory))
      (write-text (index-text chapters entries) (merge-pathnames "index.js" directory))
      (write-page "Manual" "index.html" (link-names (index-html) ""))
      (dolist (chapter chapters)
        (let ((*prefixes* (subject-prefixes (chapter-subjects chapter))))
          (write-page (chapter-title chapter) (chapter-file chapter)
                      (link-names (chapter-html chapter) "../"))))
      (dolist (subject *subjects*)
        (let ((*prefixes* (subject-prefixes (list subject)))
              (entries (remove subject entries :key #'entry-subject :test-not #'eq)))
          (write-page (subject-title subject)
                      (format nil "reference/~A.html" (subject-file subject))
                      (page:markup-text (reference-nodes subject entries chapters)))))
      (write-files directory chapters))
    (length entries)))
