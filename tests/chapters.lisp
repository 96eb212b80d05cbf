;;;; The examples of README.md and of the chapters in doc/ are run, each file's in the order of its
;;;; blocks, in a process of its own; chapter.lisp says how they are written. Tables in them are
;;;; made from what the code knows.

(defpackage #:clgrpc.tests.chapters
  (:use #:cl #:clgrpc.tests.form)
  (:import-from #:clgrpc.option
                #:option-row-name #:option-row-scope #:option-row-only #:option-row-default
                #:option-row-minimum #:option-row-maximum #:option-row-unit #:option-row-reason)
  (:local-nicknames (#:grpc #:clgrpc) (#:support #:clgrpc.tests.support)
                    (#:chapter #:clgrpc.tests.chapter)))

(in-package #:clgrpc.tests.chapters)

(def-suite :clgrpc.chapters :description "The examples and tables in README.md and doc/.")

(defmacro define-chapters (&rest paths)
  "Define a test for each of PATHS, files of the project, that runs its examples."
  `(progn
     (defparameter *chapters* ',paths)
     ,@(loop for path in paths
             collect `(test ,(intern (format nil "EXAMPLES-OF-~:@(~A~)" (pathname-name path)))
                        (let ((complaints (chapter:chapter-complaints ,path
                                                                      (support:root-file ""))))
                          (is (null complaints) "~{~A~^~%~}" complaints))))))

(define-chapters
  "README.md" "doc/addresses.md" "doc/calls.md" "doc/channelz.md" "doc/cluster/cluster.md"
  "doc/codecs.md" "doc/environment.md"
  "doc/compression.md" "doc/tools/console.md" "doc/deadlines.md" "doc/etcd/discovery.md" "doc/errors.md"
  "doc/etcd/etcd.md" "doc/guides/cookbook.md" "doc/guides/security.md" "doc/event-loop.md" "doc/fleets.md" "doc/http.md" "doc/web.md" "doc/in-process.md"
  "doc/call-credentials.md" "doc/topics.md"
  "doc/interceptors.md" "doc/limits.md" "doc/etcd/memory.md" "doc/monitoring.md"
  "doc/observability.md" "doc/observers.md" "doc/protobuf.md" "doc/cluster/raft.md" "doc/servers.md"
  "doc/simulation.md" "doc/tls.md" "doc/tracing.md" "doc/cluster/workflows.md")

(test every-chapter-is-run
  (let ((files (loop for path in (cons (support:root-file "README.md")
                                       (directory (support:root-file "doc/**/*.md")))
                     when (chapter:blocks path)
                       collect (uiop:native-namestring
                                (uiop:enough-pathname path (support:root-file ""))))))
    (is (null (set-exclusive-or files *chapters* :test #'string=)))))

;;; Tables made from what the library knows

(defun table-text (header rows)
  (format nil "~%| ~{~A~^ | ~} |~%|~{~*---|~}~%~:{| ~@{~A~^ | ~} |~%~}" header header rows))

(defparameter *tables*
  (list (list "doc/limits.md" "<!-- the table is made from the options"
              '("Option" "Of" "Default" "From" "To" "Unit" "What it bounds, and why so")
              (lambda ()
                (loop for row in (grpc:option-table)
                      collect (list (format nil "`~(~S~)`" (option-row-name row))
                                    (format nil "~(~A~)~@[, ~(~A~)s only~]" (option-row-scope row)
                                            (option-row-only row))
                                    (format nil "~(~A~)" (option-row-default row))
                                    (or (option-row-minimum row) "")
                                    (or (option-row-maximum row) "")
                                    (option-row-unit row)
                                    (substitute #\Space #\Newline (option-row-reason row))))))
        (list "doc/transports.md" "<!-- the table is made from the contract"
              '("Operation" "Thread" "Ends" "Default" "What it does")
              #'clgrpc.rpc::contract-table)
        (list "doc/architecture.md" "<!-- the table is made from the sources"
              '("Folder" "Files" "Uses")
              (lambda () (uiop:symbol-call '#:clgrpc.tests.architecture '#:graph-rows)))
        (list "doc/observers.md" "<!-- the table is made from the observations"
              '("what" "arguments" "told when")
              #'clgrpc.rpc::observation-table)
        (list "doc/monitoring.md" "<!-- the table is made from the sources"
              '("instrument" "kind" "unit" "attributes" "by default" "meaning")
              #'clgrpc.metrics:instrument-table)
        (list "doc/observability.md" "<!-- the table is made from the tracers"
              '("Tracer" "Also called" "What it tells")
              (lambda ()
                (loop for tracer in (grpc:tracer-table)
                      collect (list (format nil "`~A`" (grpc:tracer-text tracer))
                                    (format nil "~{`~A`~^, ~}" (grpc:tracer-aliases tracer))
                                    (grpc:tracer-meaning tracer))))))
  "Of each table the chapter, the beginning of the line before it, its header, and a function that
returns its rows. It ends the chapter.")

(defun chapter-parts (file mark)
  "The text of FILE up to its table, behind the line that begins with MARK, and the table."
  (let* ((text (uiop:read-file-string (support:root-file file) :external-format :utf-8))
         (end (1+ (position #\Newline text :start (search mark text)))))
    (values (subseq text 0 end) (subseq text end))))

(defun renew-tables ()
  "Write the tables of the chapters anew."
  (loop for (file mark header rows) in *tables*
        do (let ((text (chapter-parts file mark)))
             (with-open-file (out (support:root-file file) :direction :output
                                                           :if-exists :supersede
                                                           :external-format :utf-8)
               (write-string text out)
               (write-string (table-text header (funcall rows)) out)))))

(test the-tables-are-true
  (loop for (file mark header rows) in *tables*
        do (is (string= (table-text header (funcall rows))
                        (nth-value 1 (chapter-parts file mark)))
               "~A is not what the code says; (clgrpc.tests.chapters::renew-tables)" file)))

(defun event-at (word more)
  "The event that a source logs by WORD with MORE, its next tokens: its name and the levels that it
may have, as texts such as \":goaway\"; nil if it has no level, or a tracer logs it."
  (cond ((string= word "guarding") (list (first more) ":error"))
        ((string= word "warn-of") (list (second more)))
        ((member word '("log-event" "log-condition") :test #'string=)
         (loop for token in more
               if (member token '(":debug" ":info" ":warning" ":error") :test #'string=)
                 collect token into levels
               else if (string= ":trace" token)
                      do (return nil)
               ;; else a variable has the name or the level
               else if (or levels (char= #\: (char token 0)))
                      do (return (and levels (char= #\: (char token 0)) (cons token levels)))))))

(defun logged-events ()
  "The events that the sources log, but for those of tracers, as lists that EVENT-AT returns."
  (let ((events '()))
    (dolist (path (mapcan #'clgrpc.tests.architecture:folder-files
                          (clgrpc.tests.architecture:folders))
                  events)
      (loop for (word . more) on (clgrpc.tests.architecture:code-tokens
                                  (uiop:read-file-string path :external-format :utf-8))
            for event = (event-at word (subseq more 0 (min 8 (length more))))
            when (and event (first event) (char= #\: (char (first event) 0)))
              do (pushnew event events :test #'equal)))))

(defun told-level (name lines)
  "What the row for the event NAME among LINES, those of a chapter, says of its level; nil without
such a row."
  (loop with mark = (format nil "`~A`" name)
        for line in lines
        for (nil names level) = (and (uiop:string-prefix-p "| `:" line)
                                     (uiop:split-string line :separator "|"))
        when (and names (search mark names)) return level))

(test the-events-of-the-log-are-told
  "Each has a row of the table, which has the levels with which it is logged."
  (let ((lines (uiop:read-file-lines (support:root-file "doc/observability.md")
                                     :external-format :utf-8)))
    (loop for (name . levels) in (logged-events)
          for told = (told-level name lines)
          do (is-true told "doc/observability.md does not tell of the event ~A" name)
             (dolist (level levels)
               (is (or (null told) (search (subseq level 1) told))
                   "doc/observability.md tells that ~A is ~A, not ~A" name told level)))))
