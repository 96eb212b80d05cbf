;;;; Stacks for other tools, and the difference of two flame graphs.

(in-package #:clgrpc.tests.profile)

(defun tree (name ns &rest children)
  (profile::object "name" name "ns" ns "children" (coerce children 'vector)))

(defun profile-of (root)
  (profile::object "cpu" (profile::object "flame" root "periodNs" 250000 "seconds" 2)
                   "events" (profile::object "offCpu" (profile::object "flame" root)
                                             "seconds" 1)))

(defparameter *tree* (tree "all" 5000000
                           (tree "main" 5000000
                                 (tree "a;b" 3000000 (tree "leaf" 2000000))
                                 (tree "leaf" 1000000))))

(test folded-stacks
  "Each stack once, callers first, with what is its own; they add up to the whole."
  (is (string= (format nil "~{~A~%~}" '("main 1000" "main;a:b 1000" "main;a:b;leaf 2000"
                                         "main;leaf 1000"))
               (with-output-to-string (stream)
                 (profile:write-folded (profile-of *tree*) stream)))))

(test a-profile-without-sleeps-says-so
  (signals profile:profile-error
    (profile:write-folded (profile::object "cpu" (profile::object "flame" *tree*))
                          (make-broadcast-stream) :stacks :off-cpu)))

(defun check-pprof-reads (stacks sample-index duration)
  "Check that `go tool pprof` reads STACKS, values of the type SAMPLE-INDEX, of a profile that took
DURATION."
  (uiop:with-temporary-file (:stream stream :pathname path :element-type '(unsigned-byte 8))
    (write-sequence (profile::pprof-octets (profile-of *tree*) stacks) stream)
    (finish-output stream)
    (let ((output (uiop:run-program (list "go" "tool" "pprof" "-top"
                                          (format nil "-sample_index=~A" sample-index)
                                          (uiop:native-namestring path))
                                    :output :string :error-output nil :ignore-error-status t)))
      (is (search (format nil "Duration: ~A" duration) output) "~A" output)
      (loop for (name flat) in '(("leaf" "3ms") ("main" "1ms") ("a;b" "1ms"))
            do (is (find-if (lambda (line)
                              (and (search name line) (search flat line)))
                            (uiop:split-string output :separator '(#\Newline)))
                   "~A is not there with ~A: ~A" name flat output)))))

(test pprof-reads-it
  "`go tool pprof` has the functions with their shares, those of sleeps, too."
  (support:need-program "go")
  (check-pprof-reads :cpu "cpu" "2s")
  (check-pprof-reads :off-cpu "delay" "1s"))

(test flames-differ
  "What takes a larger share than before is warm, what takes a smaller one cold, by its stack."
  (let ((shares (profile::stack-shares (tree "all" 10 (tree "main" 10 (tree "a" 2) (tree "b" 8))))))
    (is (= 1/5 (gethash '("a" "main" "all") shares)))
    (is (= 0 (gethash '("c" "main" "all") shares 0))))
  (is (= 0 (profile::change-hue 1/2 1/4)) "grown")
  (is (= 215 (profile::change-hue 1/4 1/2)) "shrunk")
  (is (null (profile::change-hue 1/4 1/4)))
  (let ((markup (prin1-to-string
                 (profile::flame-graph *tree* "x" :before (tree "all" 10 (tree "main" 10))))))
    (is (search "--h:0" markup))
    (is (search "before" markup))))

(test names-do-not-reach-the-terminal-as-they-are
  "A process names its threads and functions as it likes."
  (let* ((evil (format nil "a~C[2J~C" #\Escape (code-char #x9b)))
         (node (list (cons "name" evil) (cons "ns" 1000))))
    (flet ((seen (function)
             (let ((text (with-output-to-string (stream) (funcall function stream))))
               (is (search "a\\x1b[2J\\x9b" text) "~S" text)
               (is (notany (lambda (char)
                             (or (< (char-code char) 10) (<= 11 (char-code char) 31)
                                 (<= 127 (char-code char) 159)))
                           text)))))
      (seen (lambda (stream) (profile::write-rows stream '("thread" "ms") (list (list evil "1")))))
      (seen (lambda (stream)
              (profile:write-folded
               (list (cons "cpu" (list (cons "flame" (list (cons "name" "all") (cons "ns" 1000)
                                                           (cons "children" (vector node)))))))
               stream))))))
