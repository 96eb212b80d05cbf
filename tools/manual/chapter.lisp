;;;; Chapters: Markdown becomes HTML by cmark-gfm, an established program; this file adds links, the
;;;; ids of headings and examples, and links from names to their entries.

(in-package #:clgrpc.manual)

(defstruct (chapter (:copier nil))
  "A chapter of doc/ as a page."
  (path "" :type string)                ; the path below doc/
  (title "" :type string)
  (html "" :type string)                ; the contents of the chapter's page
  ;; lists (id title text), one for each heading and the text below it
  (sections '() :type list)
  (examples '() :type list))            ; (id . text) of each block of Lisp

(defvar *root* #p"" "The directory of the project while its manual is made.")
(defvar *files* nil "While the manual is made, a table of the files that pages refer to.")
(defvar *names* nil "While the manual is made, a table from names with packages to entries.")
(defvar *prefixes* '()
  "The packages, as users write them, whose names a page has without a prefix.")

(defun fail-manual (control &rest arguments)
  (error "~?" control arguments))

(defun html-of (path)
  "The Markdown file at PATH as HTML, by cmark-gfm."
  (with-output-to-string (stream)
    (let ((process (sb-ext:run-program "cmark-gfm" (list "-e" "table" "-e" "autolink"
                                                         "--github-pre-lang" "--unsafe"
                                                         (sb-ext:native-namestring path))
                                       :search t :output stream :external-format :utf-8)))
      (unless (zerop (sb-ext:process-exit-code process))
        (fail-manual "cmark-gfm cannot read ~A." path)))))

(defun plain-text (html)
  "HTML without its tags, and with its entities as characters."
  (let ((text (ppcre:regex-replace-all "<[^>]*>" html "")))
    (loop for (entity . char) in '(("&lt;" . "<") ("&gt;" . ">") ("&quot;" . "\"") ("&amp;" . "&"))
          do (setf text (ppcre:regex-replace-all entity text char)))
    text))

(defun heading-id (title)
  "The id that GitHub gives a heading. With the same ids, links in the chapters work on GitHub and
in the manual."
  (ppcre:regex-replace-all " " (ppcre:regex-replace-all "[^\\w\\- ]" (string-downcase title) "")
                           "-"))

;;; Links

(defun site-page (path)
  "The page of the site that shows the file at PATH below the project's root; the file is noted in
*FILES*, and is therefore written."
  (cond ((string= "README.md" path) "index.html")
        ((and (uiop:string-prefix-p "doc/" path) (uiop:string-suffix-p path ".md"))
         (format nil "chapters/~A.html" (pathname-name path)))
        (t (setf (gethash path *files*) t)
           (if (member (pathname-type path) '("png" "svg" "jpg") :test #'equal)
               (format nil "files/~A" path)
               (format nil "files/~A.html" (string-right-trim "/" path))))))

(defun resolved-path (link directory)
  "LINK, relative to DIRECTORY, as a path below the project's root. Signal an error if nothing is
there."
  (let* ((parts '())
         (text (concatenate 'string directory link)))
    (dolist (part (uiop:split-string text :separator "/"))
      (cond ((string= ".." part) (pop parts))
            ((member part '("" ".") :test #'string=))
            (t (push part parts))))
    (let ((path (format nil "~{~A~^/~}" (reverse parts))))
      (unless (probe-file (merge-pathnames path *root*))
        (fail-manual "A link leads to ~A, which does not exist." path))
      path)))

(defun link-target (link directory up)
  "LINK, from a file in DIRECTORY, rewritten for a page of the site; UP is the relative path from
the page to the root of the site."
  (if (or (ppcre:scan "^[a-z]+:" link) (uiop:string-prefix-p "#" link))
      link
      (destructuring-bind (path &optional fragment) (uiop:split-string link :separator "#")
        (format nil "~A~A~@[#~A~]" up (site-page (resolved-path path directory)) fragment))))

(defun replace-groups (pattern text function)
  "TEXT with each match of PATTERN replaced by the value of FUNCTION for the match and its groups,
strings or nil."
  (ppcre:regex-replace-all pattern text
                           (lambda (match &rest groups) (apply function match groups))
                           :simple-calls t))

(defun relink (html directory up)
  "HTML of a file in DIRECTORY, with its links rewritten for the page that UP leads back from."
  (replace-groups "(href|src)=\"([^\"]*)\"" html
                  (lambda (match attribute link)
                    (declare (ignore match))
                    (format nil "~A=\"~A\"" attribute (link-target link directory up)))))

;;; Names

(defun find-entry (text)
  "The entry to which TEXT, a name with or without a package, refers in this page, or nil if no
entry has that name."
  (let ((name (string-downcase text)))
    (if (find #\: name)
        (gethash name *names*)
        (loop for prefix in *prefixes*
                thereis (gethash (concatenate 'string prefix name) *names*)))))

(defun subject-prefixes (subjects)
  "The packages whose names a page about SUBJECTS writes without a prefix; clgrpc is the last."
  (remove-duplicates
   (append (loop for subject in subjects
                 append (loop for package in (subject-packages subject)
                              when (member package *packages* :test #'string=)
                                collect (package-prefix package)))
           (list (package-prefix "CLGRPC")))
   :test #'string= :from-end t))

(defun link-name (text up)
  "The link to the entry to which TEXT refers, or nil if TEXT is no name of an entry."
  (let ((entry (find-entry text)))
    (and entry (format nil "<a href=\"~A~A\">" up (entry-url entry)))))

(defun link-names (html up)
  "Return HTML with names in code replaced by links to their entries."
  (let ((pattern "(?<![\\w:*+&;/.#-])((?:[a-z][a-z.-]*:)?[*a-z][a-z0-9*+%-]*)(?![\\w:*-])"))
    (replace-groups
     "(?s)(<pre lang=\"lisp\"[^>]*><code>)(.*?)(</code></pre>)|(<code>)([^<]*)(</code>)" html
     (lambda (match block-start block block-end start code end)
       (declare (ignore match))
       (if block
           (format nil "~A~A~A" block-start
                   (replace-groups pattern block
                                   (lambda (match name)
                                     (declare (ignore name))
                                     (let ((link (and (find #\: match) (link-name match up))))
                                       (if link (format nil "~A~A</a>" link match) match))))
                   block-end)
           (let* ((name (ppcre:regex-replace "^\\(([^ )]+).*$" code "\\1"))
                  (link (link-name name up)))
             (if link
                 (format nil "~A~A~A</a>~A" link start code end)
                 (format nil "~A~A~A" start code end))))))))

;;; A chapter

(defun number-examples (html)
  "Return two values: HTML with an id for each block of Lisp; and the blocks, conses (id . text)."
  (let ((count 0) (examples '()))
    (values (replace-groups "(?s)<pre lang=\"lisp\"><code>(.*?)</code></pre>" html
                            (lambda (match code)
                              (let ((id (format nil "example-~D" (incf count))))
                                (push (cons id (plain-text code)) examples)
                                (ppcre:regex-replace "<pre lang=\"lisp\">" match
                                                     (format nil "<pre lang=\"lisp\" id=\"~A\">"
                                                             id)))))
            (reverse examples))))

(defun number-headings (html)
  "Return two values: HTML with an id for each heading; and its sections, lists (id title text)."
  (let ((sections '()) (ids '()))
    (setf html (replace-groups "(?s)<h([1-6])>(.*?)</h\\1>" html
                               (lambda (match level title)
                                 (declare (ignore match))
                                 (let ((id (heading-id (plain-text title))))
                                   (when (member id ids :test #'string=)
                                     (setf id (format nil "~A-~D" id (length ids))))
                                   (push id ids)
                                   (format nil "<h~A id=\"~A\">~A</h~A>" level id title level)))))
    (ppcre:do-register-groups (id title text)
        ("(?s)<h[1-6] id=\"([^\"]*)\">(.*?)</h[1-6]>(.*?)(?=<h[1-6] id|$)" html)
      (push (list id (plain-text title)
                  (ppcre:regex-replace-all "\\s+" (plain-text text) " "))
            sections))
    (values html (nreverse sections))))

(defun read-chapter (path)
  "The CHAPTER of the file at PATH below doc/."
  (let* ((html (html-of (merge-pathnames (format nil "doc/~A" path) *root*)))
         (directory (format nil "doc/~A" (or (directory-namestring path) ""))))
    (multiple-value-bind (html sections) (number-headings html)
      (multiple-value-bind (html examples) (number-examples (relink html directory "../"))
        (make-chapter :path path :title (second (first sections)) :html html
                      :sections sections :examples examples)))))

(defun chapter-file (chapter)
  "The file of CHAPTER's page in the site."
  (site-page (format nil "doc/~A" (chapter-path chapter))))

(defun chapter-subjects (chapter)
  "The subjects of the reference that CHAPTER is about, in order."
  (remove-if-not (lambda (subject)
                   (member (chapter-path chapter) (subject-chapters subject) :test #'string=))
                 *subjects*))
