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
              '("observation" "arguments" "reported when")
              #'clgrpc.rpc::observation-table)
        (list "doc/monitoring.md" "<!-- the table is made from the sources"
              '("instrument" "kind" "unit" "attributes" "by default" "meaning")
              #'clgrpc.metrics:instrument-table)
        (list "doc/observability.md" "<!-- the table is made from the tracers"
              '("Tracer" "Also called" "Events")
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

(defun logged-at (form)
  "The event that FORM logs, as three values: the forms of its level and name, and its plist; nil if
it logs none. The guard of a function of users logs an error."
  (destructuring-bind (&optional operator a b &rest more)
      (and (consp form) (symbolp (first form)) (null (cdr (last form))) form)
    (flet ((with-condition (plist) (list* :condition t :backtrace t plist)))
      (cond ((string= operator '#:log-event) (values a b more))
            ((and (eq 'apply operator) (typep a '(cons (eql function) (cons symbol)))
                  (string= (second a) '#:log-event))
             (values b (first more) (butlast (rest more)))) ; at the end is a plist
            ((string= operator '#:log-condition) (values a b (with-condition (rest more))))
            ((string= operator '#:log-call-event) (values b (first more) (rest more)))
            ((string= operator '#:warn-of) (values :warning b (list* :listener t more)))
            ((string= operator '#:tell-failure) (values :warning b (list* :condition more)))
            ((string= operator '#:tell-recovery) (values :info b more))
            ((and (string= operator '#:tell) more) ; of an exporter
             (values b (first more) (list* :signal t :target t (rest more))))
            ((and (string= operator '#:guarding) (consp a))
             (values :error (first a) (with-condition (rest a))))))))

(defun keywords-in (form)
  "The keywords of which FORM, one or an IF, returns one."
  (cond ((keywordp form) (list form))
        ((and (consp form) (eq 'if (first form))) (mapcan #'keywords-in (cddr form)))))

(defun logged-events ()
  "The events that the sources log, but for those of tracers: a list of the name, the levels and the
keys for each event of each place."
  (let ((events '()))
    (labels ((look (form)
               (multiple-value-bind (level name plist) (logged-at form)
                 (let ((levels (remove :trace (keywords-in level))))
                   (when levels
                     (dolist (name (keywords-in name))
                       (push (list name levels (loop for key in plist by #'cddr collect key))
                             events)))))
               (loop for rest = form then (cdr rest)
                     while (consp rest) do (look (car rest)))))
      (dolist (folder (clgrpc.tests.architecture:folders) events)
        (dolist (file (clgrpc.tests.architecture:folder-files folder))
          (mapc #'look (clgrpc.tests.architecture::source-forms file)))))))

(defun event-row (line events)
  "LINE, a row of the table of events, with the keys that its EVENTS have; in parentheses those that
not all of them have."
  (destructuring-bind (start names level keys when end) (uiop:split-string line :separator "|")
    (declare (ignore keys))
    (let ((all (sort (remove-duplicates (apply #'append (mapcar #'third events))) #'string<)))
      (flet ((keys-text (wanted format)
               (let ((keys (remove wanted all :test-not #'eq
                                   :key (lambda (key)
                                          (and (every (lambda (event)
                                                        (member key (third event)))
                                                      events)
                                               t)))))
                 (if keys (format nil format keys) ""))))
        (format nil "~A|~A|~A|~A~A |~A|~A" start names level
                (keys-text t " ~{`:~(~A~)`~^, ~}") (keys-text nil " (~{`:~(~A~)`~^, ~})")
                when end)))))

(defun events-of-row (line events)
  "Those of EVENTS that LINE names if it is a row of their table."
  (let ((cells (uiop:split-string line :separator "|")))
    (when (and (uiop:string-prefix-p "| `:" line) (= 6 (length cells)))
      (remove-if-not (lambda (event) (search (format nil "`:~(~A~)`" (first event)) (second cells)))
                     events))))

(test the-events-of-the-log-are-told
  "Each has a row of the table, which has the levels with which it is logged and its keys."
  (let* ((events (logged-events)) (told '()))
    (dolist (line (uiop:read-file-lines (support:root-file "doc/observability.md")
                                        :external-format :utf-8))
      (let ((of-row (events-of-row line events)))
        (when of-row
          (setf told (append of-row told))
          (is (string= line (event-row line of-row)))
          (let ((level (third (uiop:split-string line :separator "|"))))
            (dolist (each '(:debug :info :warning :error))
              (is (eq (and (search (string-downcase each) level) t)
                      (and (find-if (lambda (event) (member each (second event))) of-row) t))
                  "the level of ~S" line))))))
    (is (null (set-difference events told)) "doc/observability.md does not tell of ~S"
        (set-difference events told))))
