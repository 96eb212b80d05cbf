;;;; The table of doc/environment.md has all environment variables that the sources read, and no
;;;; others.

(in-package #:clgrpc.tests.documentation)

(defparameter *environment-folders*
  '("src/" "async/" "sim/" "etcd/" "cluster/" "tools/")
  "The folders of the library and its commands.")

(defparameter *elsewhere-read*
  '("SSL_CERT_FILE" "SSL_CERT_DIR" "PATH")
  "Variables that OpenSSL reads, and those whose names say nothing in a source.")

(defun environment-sources ()
  "The Lisp files of *ENVIRONMENT-FOLDERS*, without those of the testee, whose variables tests set."
  (loop for folder in *environment-folders*
        append (remove-if (lambda (path) (search "/tools/testee/" (namestring path)))
                          (directory (support:root-file (format nil "~A**/*.lisp" folder))))))

(defun words-of (text)
  "The words of TEXT: letters, digits and underscores."
  (loop with start = 0
        for from = (position-if #'word-character-p text :start start)
        while from
        for to = (or (position-if-not #'word-character-p text :start from) (length text))
        collect (subseq text from to)
        do (setf start to)))

(defun word-character-p (character)
  (or (char= #\_ character) (and (alphanumericp character) (< (char-code character) 128))))

(defun variable-word-p (word)
  "True if WORD is the name of a variable of gRPC's, OpenTelemetry's, OpenSSL's or ours."
  (and (some (lambda (prefix) (uiop:string-prefix-p prefix word))
             '("CLGRPC_" "GRPC_" "OTEL_" "SSL_CERT"))
       (string/= "_" (subseq word (1- (length word)))) ; the beginning of several
       (notany #'lower-case-p word)))

(defun strings-after (marker text)
  "The string literals that follow MARKER in TEXT at once."
  (loop with start = 0
        for at = (search marker text :start2 start)
        while at
        do (setf start (+ at (length marker)))
        when (char= #\" (char text start))
          collect (subseq text (1+ start) (position #\" text :start (1+ start)))))

(defun variables-read ()
  "The names of the environment variables that the sources read, as far as they say so."
  (let ((names (copy-list (append *elsewhere-read* clgrpc.proxy::*proxy-variables*
                                  clgrpc.proxy::*exception-variables*))))
    (dolist (path (environment-sources))
      (let ((text (uiop:read-file-string path)))
        (dolist (word (words-of text)) (when (variable-word-p word) (push word names)))
        (dolist (marker '("getenv " "getenvp " "funcall get-variable " "(variable-value "))
          (dolist (name (strings-after marker text)) (push name names)))
        (when (search "observe/otlp/" (namestring path))
          (dolist (marker '("signal-variable signal " "(value "))
            (dolist (suffix (strings-after marker text))
              (push (format nil "OTEL_EXPORTER_OTLP_~A" suffix) names)))
          (when (search "\"OTEL_~A_EXPORTER\"" text)
            (push "OTEL_METRICS_EXPORTER" names)
            (push "OTEL_TRACES_EXPORTER" names)))))
    (set-difference (remove-duplicates names :test #'string=)
                    '("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT") ; the example of a kind
                    :test #'string=)))

(defun variables-in-table ()
  "The names in the first column of the table of doc/environment.md."
  (with-open-file (stream (support:root-file "doc/environment.md"))
    (loop for line = (read-line stream nil)
          while line
          when (uiop:string-prefix-p "| `" line)
            append (loop for (nil name) on (uiop:split-string
                                            (subseq line 0 (position #\| line :start 1))
                                            :separator "`")
                         by #'cddr
                         when name collect name))))

(defparameter *computing-readers*
  '("tools/command/cluster-node.lisp")
  "The files that read a variable whose name a parameter has.")

(test environment-variables-are-in-the-table
  "A variable that a source reads and the table lacks, or the other way round."
  (let ((read (variables-read)) (told (variables-in-table)))
    (is (< 30 (length told)))
    (is (= (length told) (length (remove-duplicates told :test #'string=))))
    (is (null (set-difference read told :test #'string=)) "not in doc/environment.md: ~{~A~^, ~}"
        (set-difference read told :test #'string=))
    (is (null (set-difference told read :test #'string=)) "nothing reads ~{~A~^, ~}"
        (set-difference told read :test #'string=))))

(defun unnamed-reads (text)
  "How many variables TEXT, a source, reads without saying their names beside."
  (flet ((at-p (word start) (let ((end (+ start (length word))))
                              (and (<= 0 start) (<= end (length text))
                                   (string= word text :start2 start :end2 end)))))
    (loop for start = 0 then (1+ at)
          for at = (search "getenv" text :start2 start)
          while at
          count (notany #'identity
                        (list (at-p "getenv \"" at) (at-p "getenvp \"" at)
                              (at-p "#'sb-ext:posix-getenv" (- at 15))))))) ; handed on

(test environment-is-read-by-names
  "Who reads a variable says its name, so that the test above sees it."
  (dolist (path (environment-sources))
    (let ((file (uiop:native-namestring (uiop:enough-pathname path (support:root-file "")))))
      (unless (member file *computing-readers* :test #'string=)
        (is (zerop (unnamed-reads (uiop:read-file-string path)))
            "~A reads a variable without its name" file)))))
