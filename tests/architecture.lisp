;;;; The house of the design, checked in the sources: which folder of src/ may use which, that `::`
;;;; and the kernel stay where they belong, that nothing below the loop reads a clock, that tests
;;;; know the inside of what they test only. The sources are read as tokens, not as forms, so that a
;;;; reference counts wherever it stands.

(defpackage #:clgrpc.tests.architecture
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:support #:clgrpc.tests.support))
  ;; for other tests
  (:export #:code-tokens #:folder-files #:folders #:skip-string))

(in-package #:clgrpc.tests.architecture)

(def-suite :clgrpc.architecture :description "The arrows between the folders of src/.")

(defparameter *arrows*
  '(("kernel")
    ("base" "kernel")
    ("option" "base")
    ("os" "base")
    ("loop" "base" "option" "os")
    ("async" "base" "option" "os" "loop")
    ("dns" "base" "os" "loop")
    ("proxy" "base" "os" "loop")
    ("hpack" "base")
    ("http1" "base" "hpack")
    ("http2" "base" "option" "hpack")
    ("protobuf" "base" "option" "kernel")
    ("status" "base" "option" "protobuf")
    ("encoding" "os" "protobuf" :all-of)
    ("method" "status" "encoding" "loop" :all-of)
    ("credentials" "method" :all-of)
    ("rpc" "method" :all-of)
    ("config" "status" :all-of)
    ("topic" "rpc" :all-of)
    ("logs" "rpc" :all-of)
    ("attempt" "rpc" "config" :all-of)
    ("calling" "rpc" "credentials" :all-of)
    ("serving" "rpc" :all-of)
    ("wire" "rpc" "hpack" "http2" :all-of)
    ("client" "calling" "attempt" "wire" "dns" "proxy" :all-of)
    ("balance" "client" :all-of)
    ("trace" "client" :all-of)
    ("token" "client" "http1" :all-of)
    ("exchange" "http1" "http2" "loop" :all-of)
    ("server" "serving" "wire" "exchange" :all-of)
    ("web" "server" :all-of)
    ("grpc-web" "web" :all-of)
    ("grpc-json" "web" :all-of)
    ("connect" "web" :all-of)
    ("rest" "web" :all-of)
    ("gateway" "server" "calling" :all-of)
    ("inproc" "calling" "attempt" "serving" :all-of)
    ("services" "inproc" "server" "metrics" :all-of)
    ("metrics" "rpc" "http1" :all-of)
    ("channelz" "client" "server" :all-of)
    ("otlp" "client" "metrics" "trace" :all-of)
    ("command" "base" "option" "os" "loop")
    ("program" "command" "services" "logs" "otlp" "channelz" :all-of)
    ("console" "program" :all-of)
    ("etcd" "balance" "metrics" :all-of)
    ("discovery" "etcd" "server" "command" :all-of)
    ("memory" "etcd" "inproc" :all-of)
    ("authority" "base" "os" "loop" "rpc")
    ("raft" "authority" "balance" "server" "metrics" :all-of)
    ("workflow" "authority" "balance" "etcd" "services" "trace" :all-of)
    ("workflow-console" "console" "workflow" :all-of)
    ("cluster" "authority" "memory" "discovery" "services" :all-of)
    ("sim" "inproc" "client" "server" :all-of))
  "For each folder the folders it may use; :ALL-OF adds what these may use.")

(defparameter *excused*
  '(("src/base/clock.lisp" "sb-alien" "clock_gettime is answered in user space, without the kernel")
    ("src/base/octets.lisp" "sb-alien" "memmove is the C library's, not the kernel's")
    ("src/base/memory/raw.lisp" "sb-alien" "the collector's own allocation, not the kernel's")
    ("src/base/memory/heap.lisp" "sb-alien" "variables of the collector, not the kernel's")
    ("src/base/memory/heap.lisp" "sb-vm" "what an entry of the table of pages consists of is not exported")
    ("src/base/memory/heap.lisp" "sb-kernel" "that a collection has taken place has no exported name")
    ("src/base/memory/collector.lisp" "sb-alien" "the C library's allocation, not the kernel's")
    ("src/base/memory/collector.lisp" "sb-vm" "what an entry of the table of pages has is not exported")
    ("src/base/memory/collector.lisp" "sb-kernel" "that a collection has taken place has no exported name")
    ("src/base/kernel/processor-feature.lisp" "sb-alien" "a variable of SBCL's runtime says what there is")
    ("src/base/kernel/processor-feature.lisp" "sb-vm" "what the processor says of itself is not exported")
    ("src/base/kernel/kernel.lisp" "sb-vm" "machine code names registers, which have no exported names")
    ("src/base/kernel/instruction.lisp" "sb-vm" "machine code names registers, which are not exported")
    ("src/base/kernel/instruction.lisp" "sb-x86-64-asm"
     "what an operand in memory consists of is not exported")
    ("src/rpc/method/method.lisp" "sb-pcl" "only SBCL's CLOS knows what a generic function would call")
    ("src/rpc/method/method.lisp" "sb-c" "the lock CLOS holds to define methods has no exported name")
    ("src/protobuf/codec/wire.lisp" "sb-c" "sign extension of a machine word has no exported name")
    ("src/program/perf-map.lisp" "sb-vm" "no exported name lists the functions of the image")
    ("src/program/perf-map.lisp" "sb-unix" "a table of perf's is named by the process id"))
  "Files that may use a package which the rules below forbid, each with the reason.")

(defun excused-p (file package)
  (find-if (lambda (row) (and (string= file (first row)) (string= package (second row))))
           *excused*))

(defun allowed (folder)
  "The folders that FOLDER may use, itself among them."
  (let* ((row (or (assoc folder *arrows* :test #'string=)
                  (error "The folder ~A is not in the table of arrows." folder)))
         (named (remove :all-of (rest row))))
    (remove-duplicates (append (list folder) named
                               (when (member :all-of (rest row)) (mapcan #'allowed named)))
                       :test #'string=)))

;;; Reading sources

(defparameter *delimiters* (coerce '(#\Space #\Newline #\Tab #\Page #\Return #\( #\) #\' #\` #\,)
                                   'string))

(defun skip-string (text start)
  "The position after the string literal, or the name between bars, that begins at START."
  (loop with quote = (char text start)
        with i = (1+ start)
        while (< i (length text))
        do (let ((char (char text i)))
             (cond ((char= char #\\) (incf i 2))
                   ((char= char quote) (return (1+ i)))
                   (t (incf i))))
        finally (return (length text))))

(defun skip-block-comment (text start)
  (loop with depth = 0
        with i = start
        for pair = (subseq text i (min (length text) (+ i 2)))
        do (cond ((string= pair "#|") (incf depth) (incf i 2))
                 ((string= pair "|#") (decf depth) (incf i 2))
                 (t (incf i)))
           (when (or (zerop depth) (>= i (length text)))
             (return i))))

(defun code-tokens (text)
  "The tokens of TEXT, Lisp source, lower case, without comments, strings and characters."
  (let ((tokens '())
        (i 0)
        (end (length text)))
    (flet ((delimiter-p (char) (find char *delimiters*))
           (looking-at (prefix) (uiop:string-prefix-p prefix (subseq text i (min end (+ i 2))))))
      (loop while (< i end)
            do (let ((char (char text i)))
                 (cond ((delimiter-p char) (incf i))
                       ((char= char #\;) (setf i (or (position #\Newline text :start i) end)))
                       ((looking-at "#|") (setf i (skip-block-comment text i)))
                       ((looking-at "#\\")
                        (setf i (or (position-if #'delimiter-p text :start (min end (+ i 3))) end)))
                       ((find char "\"|") (setf i (skip-string text i)))
                       (t (let ((stop (or (position-if (lambda (char)
                                                         (or (delimiter-p char) (find char ";\"")))
                                                       text :start i)
                                          end)))
                            (push (string-downcase (string-left-trim "@" (subseq text i stop)))
                                  tokens)
                            (setf i stop)))))))
    (nreverse tokens)))

(defparameter *asds*
  '(("clgrpc")
    ("clgrpc-async" "clgrpc")
    ("clgrpc-sim" "clgrpc")
    ("clgrpc-etcd" "clgrpc")
    ("clgrpc-cluster" "clgrpc" "clgrpc-etcd" "clgrpc-sim")
    ("clgrpc-tools" "clgrpc" "clgrpc-async" "clgrpc-sim" "clgrpc-etcd" "clgrpc-cluster"))
  "Each package that can be loaded alone, a file NAME.asd, and those that it may stand on.")

(defun systems-of (asd)
  "The names of the systems that ASD, the name of such a file, defines."
  (asdf:find-system asd)
  (remove asd (asdf:registered-systems) :key #'asdf:primary-system-name :test-not #'string=))

(defun system-folder (system)
  "What the folder of the SYSTEM of that name, and its package, are called: hpack for clgrpc/hpack,
async for clgrpc-async."
  (subseq system (1+ (or (position #\/ system :from-end t) (position #\- system)))))

(defparameter *programs*
  '("clgrpc" "clgrpc/examples" "clgrpc-async/examples" "clgrpc-cluster/raft-example" "clgrpc-tools"
    "clgrpc-tools/testee" "clgrpc-tools/manual" "clgrpc-tools/load" "clgrpc-tools/page"
    "clgrpc-tools/report" "clgrpc-tools/profile")
  "The systems that are no layers: the names that users see, examples, the command.")

(defun layer-systems ()
  "The names of the systems that are layers, with a package each."
  (loop for (asd) in *asds*
        append (set-difference (systems-of asd) *programs* :test #'string=)))

(defun folder-system (folder)
  (asdf:find-system (or (find folder (layer-systems) :key #'system-folder :test #'string=)
                        (error "No system has the folder ~A." folder))))

(defun folder-files (folder)
  "The paths of the sources in FOLDER, wherever it is."
  (support:system-sources (folder-system folder)))

(defun layer-home (folder)
  (asdf:component-pathname (folder-system folder)))

(defun folders ()
  "The folders that hold layers, a package and a system each."
  (sort (mapcar #'system-folder (layer-systems)) #'string<))

(defun package-file (folder)
  (find "package" (folder-files folder) :key #'pathname-name :test #'string=))

(defun file-text (path)
  "The PATH of a source as the project's files are called."
  (enough-namestring path (support:root-file "")))

(defun tokens-of (file)
  (code-tokens (uiop:read-file-string file :external-format :utf-8)))

(defun package-options (folder)
  "The options of the DEFPACKAGE in FOLDER/package.lisp, names as strings."
  (with-open-file (stream (package-file folder))
    (let ((*package* (find-package '#:clgrpc.tests.architecture))
          (*read-eval* nil))
      (loop for form = (read stream nil)
            while form
            when (and (consp form) (string= (first form) "DEFPACKAGE"))
              append (cddr form)))))

(defun nicknames (folder)
  "An alist from local nickname to package, both lower case, of the package of FOLDER."
  (loop for (key . items) in (package-options folder)
        when (eq key :local-nicknames)
          append (loop for (nickname package) in items
                       collect (cons (string-downcase nickname) (string-downcase package)))))

(defun declared-packages (folder)
  (loop for (key . items) in (package-options folder)
        append (mapcar #'string-downcase
                       (case key
                         (:use items)
                         ((:import-from :shadowing-import-from) (list (first items)))
                         (:local-nicknames (mapcar #'second items))))))

(defun token-package (token)
  "The package part of a token such as `package:symbol`, or NIL."
  (let ((colon (position #\: token)))
    (when (and colon (plusp colon) (not (find (char token 0) "#:")))
      (subseq token 0 colon))))

(defun referred-packages (folder file)
  "The packages that `package:symbol` tokens of FILE refer to, nicknames resolved."
  (let ((nicknames (nicknames folder)))
    (remove-duplicates
     (loop for token in (tokens-of file)
           for package = (token-package token)
           when package
             collect (or (cdr (assoc package nicknames :test #'string=)) package))
     :test #'string=)))

(defun our-folder (package)
  "The folder that PACKAGE belongs to, or NIL if it is not one of ours."
  (when (uiop:string-prefix-p "clgrpc." package)
    (let ((rest (subseq package (length "clgrpc."))))
      (subseq rest 0 (position #\. rest)))))

;;; The checks

(test arrows-between-packages
  (dolist (folder (folders))
    (let ((allowed (allowed folder)))
      (flet ((check (package where)
               (let ((used (our-folder package)))
                 (is (not (string= package "clgrpc"))
                     "~A refers to the package of users, CLGRPC" where)
                 (when used
                   (is (member used allowed :test #'string=)
                       "~A uses ~A, which the design does not allow" where used)))))
        (dolist (package (declared-packages folder))
          (check package (file-text (package-file folder))))
        (dolist (file (folder-files folder))
          (dolist (package (referred-packages folder file))
            (check package (file-text file))))))))

(test arrows-between-systems
  (dolist (folder (folders))
    (let ((system (folder-system folder)))
      (dolist (needed (asdf:system-depends-on system))
        (when (and (uiop:string-prefix-p "clgrpc" needed)
                   (string/= "clgrpc" needed))
          (is (member (system-folder needed) (allowed folder) :test #'string=)
              "The system ~A depends on ~A, which the design does not allow"
              (asdf:component-name system) needed))))))

(test systems-name-what-they-stand-on
  "Each system can be loaded alone: the packages that its own names are of systems that it names, or
that these name."
  (dolist (folder (folders))
    (let ((systems '()))
      (labels ((visit (system)
                 (let ((name (asdf:component-name system)))
                   (when (and (uiop:string-prefix-p "clgrpc" name)
                              (not (member name systems :test #'string=)))
                     (push name systems)
                     (dolist (needed (asdf:system-depends-on system))
                       (visit (asdf:find-system needed)))))))
        (visit (folder-system folder)))
      (dolist (package (declared-packages folder))
        (let ((used (our-folder package)))
          (when (and used (member used (folders) :test #'string=))
            (is (member used systems :key #'system-folder :test #'string=)
                "The system ~A does not depend on that of ~A"
                (asdf:component-name (folder-system folder)) package)))))))

(defun offending-tokens (folder predicate)
  "A list of `file: token` for each token of the sources of FOLDER that satisfies PREDICATE, a
function of the token and its package, nicknames resolved, and is not excused."
  (let ((nicknames (nicknames folder)))
    (loop for path in (folder-files folder)
          for file = (file-text path)
          append (loop for token in (remove-duplicates (tokens-of path) :test #'string=)
                       for named = (token-package token)
                       for package = (or (cdr (assoc named nicknames :test #'equal)) named)
                       when (and (funcall predicate token package)
                                 (not (and package (excused-p file package))))
                         collect (format nil "~A: ~A" file token)))))

(test internals-stay-inside
  (dolist (folder (folders))
    (let ((found (offending-tokens folder (lambda (token package)
                                            (and package (search "::" token))))))
      (is (null found) "Internal symbols of other packages:~{ ~A~}" found))))

(defparameter *further-twins*
  '(("tests/cluster/raft-example/" #:clgrpc.examples.raft)
    ("tests/tools/command/" #:clgrpc.testee)
    ("tests/sim/record/" #:clgrpc.sim)
    ("tests/runner.lisp" #:it.bese.fiveam)
    ("tests/mutant.lisp" #:it.bese.fiveam)
    ("tests/support/programs/suite.lisp" #:it.bese.fiveam))
  "What the paths of tests begin with, and a package that they are about besides.")

(defun named-package (path beginning)
  "The package that the first line of the file at PATH with that BEGINNING names, or nil."
  (let ((line (find-if (lambda (line) (uiop:string-prefix-p beginning line))
                       (uiop:read-file-lines path :external-format :utf-8))))
    (and line
         (find-package (string-upcase (string-trim ")" (subseq line (length beginning))))))))

(defun first-folder-p (file)
  "True if FILE is in tests/ itself: its twin is the runner."
  (= 2 (length (uiop:split-string (file-text file) :separator "/"))))

(defun twin-package (file)
  "The package whose tests are in FILE, the path of one, a package or nil: that of the folder of the
sources that FILE's folder, or one around it, is called after."
  (loop for folder = (butlast (uiop:split-string (file-text file) :separator "/"))
          then (butlast folder)
        while folder
        do (let ((path (support:root-file (if (rest folder)
                                              (format nil "~{~A/~}package.lisp" (rest folder))
                                              "tests/package.lisp"))))
             (when (and (probe-file path) (or (rest folder) (first-folder-p file)))
               (return (named-package path "(defpackage #:"))))))

(defun foreign-insides (file)
  "The tokens `package::symbol` of FILE, of tests, whose package is not one that it tests."
  (let ((*package* (or (named-package file "(in-package #:") *package*))
        (twins (list* (twin-package file)
                      (loop for (path twin) in *further-twins*
                            when (uiop:string-prefix-p path (file-text file))
                              collect (find-package twin)))))
    (remove-if (lambda (token)
                 (let ((end (search "::" token)))
                   (or (null end)
                       (zerop end)
                       (member (find-package (string-upcase (subseq token 0 end)))
                               (remove nil twins)))))
               (tokens-of file))))

(defparameter *most-foreign-insides* 478
  "How many references tests make to what other packages than the one they test do not export. Lower
the number when it can be.")

(test tests-know-the-inside-of-their-twin-only
  "Tests refer by `::` to the package that they test, so that a change inside of a package breaks
the tests of no other; few refer to another."
  (let ((count (loop for file in (directory (support:root-file "tests/**/*.lisp"))
                     sum (length (foreign-insides file)))))
    (is (<= count *most-foreign-insides*)
        "~D references into packages that are not the test's own, ~D allowed" count
        *most-foreign-insides*)))

(test kernel-only-in-os
  (dolist (folder (remove "os" (folders) :test #'string=))
    (let ((found (offending-tokens
                  folder
                  (fn (_token package)
                    (member package '("sb-alien" "sb-posix" "sb-bsd-sockets" "sb-unix")
                            :test #'equal)))))
      (is (null found) "The kernel is touched outside src/os:~{ ~A~}" found))))

(test core-without-clock-and-threads
  (dolist (folder (intersection '("hpack" "http2" "protobuf") (folders) :test #'string=))
    (let ((found (offending-tokens
                  folder
                  (fn (token _package)
                    (member token '("monotonic-ns" "real-time-ns" "get-universal-time" "random"
                                    "get-internal-real-time" "sb-thread:make-thread" "sleep")
                            :test #'string=)))))
      (is (null found) "Below the loop, time is an argument:~{ ~A~}" found))))

(test time-and-chance-come-from-the-loop
  (dolist (folder (intersection '("status" "method" "encoding" "rpc" "credentials" "attempt"
                                  "calling" "serving" "wire" "client" "server" "inproc" "services"
                                  "balance" "config" "dns" "proxy" "etcd" "discovery" "memory"
                                  "raft" "workflow" "cluster" "otlp")
                                (folders) :test #'string=))
    (let ((found (offending-tokens
                  folder
                  (fn (token _package)
                    (member token `("monotonic-ns" "real-time-ns" "get-universal-time"
                                    "get-internal-real-time" "make-random-state" "*random-state*"
                                    "sb-ext:seed-random-state" "sleep"
                                    ;; these have one beside every world
                                    ,@(unless (member folder '("calling" "otlp")
                                                      :test #'string=)
                                        '("sb-thread:make-thread")))
                            :test #'string=)))))
      (is (null found) "Above the loop, its clock, random-state and threads are used:~{ ~A~}"
          found))))

(test other-platforms-are-refused
  ;; not one of the definitions is reached
  (dolist (features (list (remove :linux *features*)
                          (set-difference *features* '(:x86-64 :arm64))
                          (remove :sbcl *features*)))
    (handler-case (let ((*features* features)
                        (*error-output* (make-broadcast-stream)))
                    (load (support:root-file "clgrpc.asd"))
                    (fail "clgrpc.asd was loaded"))
      (error (condition)
        (is (search "clgrpc runs on SBCL on Linux" (princ-to-string condition)))))))

(test every-test-is-run
  "What is in the folder of a layer is, since its system is made from it; and each folder has one."
  (flet ((paths (component)
           (mapcar #'asdf:component-pathname (asdf:component-children component))))
    (let ((loaded (loop for system in (systems-of "clgrpc-tests")
                        append (paths (asdf:find-system system)))))
      (dolist (path (directory (support:root-file "tests/*/**/*.lisp")))
        (unless (search "/tests/conformance/" (namestring path))
          (is (member path loaded :test #'equal)
              "clgrpc-tests.asd has no row for ~A" (file-text path)))))))

(defconstant +columns+ 100 "How long a line of our Lisp may be.")

(defun in-string-p (line position)
  "True if POSITION of LINE, which begins in no string, is in one."
  (loop with inside = nil
        with i = 0
        while (< i position)
        do (case (char line i)
             (#\\ (incf i))
             (#\" (setf inside (not inside))))
           (incf i)
        finally (return inside)))

(defun long-lines (file strings-excused)
  "The numbers of the lines of FILE that are too long. STRINGS-EXCUSED: a string that is data need
not be cut."
  (loop for line in (uiop:read-file-lines file :external-format :utf-8)
        for number from 1
        when (and (> (length line) +columns+)
                  (not (and strings-excused (in-string-p line +columns+))))
          collect number))

(test lines-fit
  (dolist (pattern '("src/**/*.lisp" "async/*.lisp" "sim/*.lisp" "etcd/**/*.lisp"
                     "cluster/**/*.lisp" "tools/**/*.lisp" "examples/**/*.lisp" "tests/**/*.lisp"
                     "bench/**/*.lisp" "scripts/**/*.lisp"))
    (dolist (file (directory (support:root-file pattern)))
      (let ((found (long-lines file (uiop:string-prefix-p "tests" pattern))))
        (is (null found) "Lines of more than ~D columns in ~A:~{ ~D~}" +columns+
            (enough-namestring file (support:root-file "")) found)))))

(test each-record-has-a-test
  "The texts in tests/vectors/record are those that a source names after CHECK-RECORD or
DEFINE-RECORD."
  (is (equal (sort (loop for file in (directory (support:root-file "tests/**/*.lisp"))
                         append (loop for (token name) on (tokens-of file)
                                      when (and (member token '("support:check-record"
                                                                "define-record")
                                                        :test #'string=)
                                                (string/= "name" name)) ; a variable
                                        collect name))
                   #'string<)
             (sort (mapcar #'pathname-name
                           (directory (support:root-file "tests/vectors/record/*.txt")))
                   #'string<))))

(test the-checks-see
  ;; what the checks above would find, so that their silence means something
  (is (equal '("defun" "f" "x" "loop:run" "x") (code-tokens "(defun f (x) ; a:b
  #| c:d |# #\\( \"e:f\" (loop:run `,@x))")))
  (is (equal "loop" (token-package "loop:run")))
  (is (null (token-package ":key")))
  (is (null (token-package "#:name")))
  (is (equal "http2" (our-folder "clgrpc.http2")))
  (is (not (member "loop" (allowed "http2") :test #'string=)))
  (is (not (member "server" (allowed "client") :test #'string=)))
  (is (member "os" (allowed "services") :test #'string=)))
