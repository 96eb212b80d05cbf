;;;; The files of examples/production: systemd and promtool take them, `clgrpc` takes the command
;;;; lines in them, and the script restarts what it is to restart.

(in-package #:clgrpc.tests.examples)

(defun production-file (name)
  (support:root-file (concatenate 'string "examples/production/" name)))

(defun production-text (name)
  (uiop:read-file-string (production-file name)))

(defun replace-all (text &rest pairs)
  "TEXT with each of PAIRS, a plist of strings, replaced."
  (loop for (old new) on pairs by #'cddr
        do (loop for at = (search old text)
                 while at
                 do (setf text (concatenate 'string (subseq text 0 at) new
                                            (subseq text (+ at (length old)))))))
  text)

(defun environment-values (text)
  "The values that TEXT, lines NAME=VALUE, gives to names, as a plist of ${NAME} and $NAME, whose
value is several words, and values."
  (loop for line in (uiop:split-string text :separator '(#\Newline))
        for equals = (position #\= line)
        when (and equals (char/= #\# (char line 0)))
          append (loop for form in '("${~A}" "$~A")
                       collect (format nil form (subseq line 0 equals))
                       collect (subseq line (1+ equals)))))

(defun words (text)
  (remove "" (uiop:split-string text :separator '(#\Space #\Newline #\\)) :test #'string=))

(defun taken-p (arguments)
  "True if `clgrpc` takes the command line ARGUMENTS, a list of strings."
  (let ((command (clgrpc.tools:find-command (first arguments))))
    (handler-case (listp (clgrpc.tools::parse-arguments command (rest arguments)))
      (clgrpc.tools::usage-error (error) (print (princ-to-string error)) nil))))

(defun unit-command ()
  "The command line of the unit, as a list of words, for the node a."
  (let* ((unit (production-text "clgrpc-node@.service"))
         (start (+ (search "ExecStart=" unit) (length "ExecStart=")))
         (end (search "# may read" unit :start2 start)))
    (words (apply #'replace-all (subseq unit start end) "%i" "a" "%d" "/run/x"
                  (environment-values (production-text "node.env"))))))

(test the-units-command-is-taken
  (is-true (taken-p (rest (unit-command))))
  (is-true (notany (lambda (word) (find #\$ word)) (unit-command))))

(test units-see-renewed-certificates
  "No unit gives its program copies of certificates: those of LoadCredential stay as they were when
the unit was started, and SIGHUP would read them again in vain."
  (dolist (file '("examples/production/clgrpc-node@.service" "examples/program/greeter.service"
                  "doc/guides/first-service.md"))
    (let ((text (uiop:read-file-string (support:root-file file) :external-format :utf-8)))
      (dolist (option '("--tls-cert" "--tls-key" "--client-ca"))
        (loop for at = (search option text) then (search option text :start2 (1+ at))
              while at
              do (is (not (find (char text (+ at (length option) 1)) "%$"))
                     "~A: ~A" file (subseq text at (position #\Newline text :start at))))))))

(defun check-unit (source name program)
  "Check that systemd takes the file at SOURCE as the unit NAME, with /bin/true for PROGRAM, a path."
  (support:with-folder (folder)
    (let ((file (concatenate 'string folder name)))
      (with-open-file (stream file :direction :output)
        (write-string (replace-all (uiop:read-file-string source) program "/bin/true") stream))
      (multiple-value-bind (output error-output code)
          (uiop:run-program (list "systemd-analyze" "verify" "--man=no" file)
                            :output :string :error-output :string :ignore-error-status t)
        (is (eql 0 code) "~A" error-output)
        (is (null (search name error-output)) "~A~A" output error-output)))))

(test systemd-takes-the-units
  (support:need-program "systemd-analyze")
  (check-unit (production-file "clgrpc-node@.service") "clgrpc-node@a.service"
              "/usr/local/bin/clgrpc")
  (check-unit (support:root-file "examples/program/greeter.service") "greeter.service"
              "/usr/local/bin/greeter"))

(defun yaml-documents (file)
  "How many documents of YAML FILE has, by Python's parser; nil if it has faults, or that is
not there."
  (multiple-value-bind (output error-output code)
      (uiop:run-program
       (list "python3" "-c" "import sys, yaml
print(len(list(yaml.safe_load_all(open(sys.argv[1])))))"
             file)
       :output '(:string :stripped t) :error-output :string :ignore-error-status t)
    (declare (ignore error-output))
    (and (eql 0 code) (parse-integer output))))

(test kubernetes-reads-the-file
  (unless (zerop (nth-value 2 (uiop:run-program "python3 -c 'import yaml'"
                                                :ignore-error-status t)))
    (support:skip-test "Python's yaml is not installed"))
  (is (eql 3 (yaml-documents (production-file "kubernetes.yaml")))))

(defun quoted-words (line)
  "The texts between the quotes of LINE."
  (loop for part in (uiop:split-string line :separator "\"")
        for quoted = nil then (not quoted)
        when quoted collect part))

(test the-containers-commands-are-taken
  (let* ((file (production-text "Containerfile"))
         (entry (rest (quoted-words (subseq file (search "ENTRYPOINT" file)))))
         (pods (loop for line in (uiop:split-string (production-text "kubernetes.yaml")
                                                    :separator '(#\Newline))
                     for text = (string-left-trim " " line)
                     when (uiop:string-prefix-p "- --" text)
                       collect (replace-all (subseq text 2) "$(POD)" "mesh-0"))))
    (is (= 4 (length pods)))
    (is-true (taken-p (append entry pods)))))

(test promtool-passes-the-clusters-rules
  (support:need-program "promtool")
  (multiple-value-bind (code lines)
      (support:run-to-end "/usr/bin/env" (list "promtool" "check" "rules"
                                               (production-file "rules.yml")))
    (is (eql 0 code) "~{~%~A~}" lines)))

(test the-clusters-rules-ask-for-what-there-is
  (let ((metrics (grpc:make-metrics)))
    (clgrpc.cluster::meters-of metrics)
    (clgrpc.workflow::new-instruments metrics)
    (let ((told (loop for custom in (clgrpc.metrics::metrics-customs metrics)
                      for family = (clgrpc.metrics::custom-family custom)
                      for name = (clgrpc.metrics::prometheus-name family)
                      collect (if (eq :counter (clgrpc.metrics:family-kind family))
                                  (concatenate 'string name "_total")
                                  name)))
          (text (production-text "rules.yml")))
      (dolist (name '("clgrpc_cluster_joined" "clgrpc_cluster_members"
                      "clgrpc_cluster_lease_losses_total" "clgrpc_workflow_ready"
                      "clgrpc_workflow_steps_total" "clgrpc_workflow_stuck"
                      "clgrpc_workflow_store_bytes" "clgrpc_workflow_store_limit_bytes"))
        (is (search name text))
        (is (member name told :test #'string=) "~A is not among ~S" name told)))))

(defparameter +fake-clgrpc+ "#!/bin/sh
# a program that shows two members, whose generations are in files
echo 'NAME GENERATION STATE ADDRESS'
for name in a b; do echo \"$name $(cat \"$PLACE/$name\") serving 127.0.0.1:1\"; done
")

(test nodes-are-restarted-one-after-another
  "rolling-restart goes on when a node has come back, and stops where one does not, or where no node
tells of members."
  (support:with-folder (folder)
    (flet ((write-text (name text)
             (with-open-file (stream (concatenate 'string folder name) :direction :output
                                                                       :if-exists :supersede)
               (write-string text stream)))
           (roll (script)
             (multiple-value-bind (output error-output code)
                 (uiop:run-program (list "env" (format nil "PLACE=~A" folder)
                                         (format nil "CLGRPC=~Afake" folder) "WAIT_SECONDS=1"
                                         (production-file "rolling-restart") "ipv4:127.0.0.1:1"
                                         "sh" "-c" script "restart")
                                   :output '(:string :stripped t)
                                   :error-output '(:string :stripped t)
                                   :ignore-error-status t)
               (list code output error-output))))
      (write-text "fake" +fake-clgrpc+)
      (uiop:run-program (list "chmod" "+x" (concatenate 'string folder "fake")))
      (dolist (name '("a" "b")) (write-text name "5"))
      (is (equal (list 0 (format nil "restarting a~%restarting b") "")
                 (roll "echo 7 >\"$PLACE/$1\"")))
      (is (equal '(1 "restarting a" "a has not come back") (roll "true")))
      (write-text "fake" (format nil "#!/bin/sh~%exit 1~%"))
      (is (equal '(1 "" "no node at ipv4:127.0.0.1:1 tells of members") (roll "true"))))))
