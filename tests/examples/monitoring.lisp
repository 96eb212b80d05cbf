;;;; The files of examples/monitoring: promtool checks those of Prometheus and runs the tests of the
;;;; rules, and whatever the rules and the dashboard ask for is something that we tell. What
;;;; Prometheus finds for the dashboard's expressions the conformance suite `metrics` looks at.

(in-package #:clgrpc.tests.examples)

(defun monitoring-file (name)
  (support:root-file (concatenate 'string "examples/monitoring/" name)))

(test promtool-passes-the-rules
  (support:need-program "promtool")
  (dolist (arguments '(("check" "config" "prometheus.yml") ("check" "rules" "rules.yml")
                       ("test" "rules" "rules-test.yml")))
    (destructuring-bind (verb noun file) arguments
      (multiple-value-bind (code lines)
          (support:run-to-end "/usr/bin/env"
                              (list "promtool" verb noun (monitoring-file file)))
        (is (eql 0 code) "~A:~{~%~A~}" file lines)))))

(defun told-names ()
  "The names of all that we tell Prometheus of, with those of the parts of histograms."
  (let ((metrics (grpc:make-metrics :enable t)))
    ;; it has an instrument of its own
    (grpc:stop-exporter (grpc:make-otlp-exporter "127.0.0.1:1" :metrics metrics) :timeout 0)
    (loop for family in (append (mapcar (lambda (instrument)
                                          (clgrpc.metrics::read-instrument metrics instrument))
                                        (clgrpc.metrics::metrics-instruments metrics))
                                (mapcar #'clgrpc.metrics::custom-family
                                        (clgrpc.metrics::metrics-customs metrics)))
          for name = (clgrpc.metrics::prometheus-name family)
          append (ecase (clgrpc.metrics:family-kind family)
                   (:counter (list (concatenate 'string name "_total")))
                   ((:gauge :up-down-counter) (list name))
                   (:histogram (loop for part in '("_bucket" "_sum" "_count")
                                     collect (concatenate 'string name part)))))))

(defun names-in (text)
  "The names of metrics of gRPC, of ours and of processes in TEXT, expressions."
  (flet ((word-p (char) (or (alphanumericp char) (find char "_:"))))
    (loop for start = 0 then end
          for begin = (position-if #'word-p text :start start)
          while begin
          for end = (or (position-if-not #'word-p text :start begin) (length text))
          for word = (string-right-trim ":" (subseq text begin end))
          when (and (some (lambda (prefix) (uiop:string-prefix-p prefix word))
                          '("grpc_" "clgrpc_" "process_"))
                    ;; labels
                    (not (member word '("grpc_method" "grpc_status" "grpc_target" "clgrpc_option"
                                        "clgrpc_loop")
                                 :test #'string=))
                    ;; the end of a pattern of names
                    (not (string= "grpc_" word)))
            collect word)))

(defun file-lines (name prefix)
  "The lines of the file NAME without those that begin, behind blanks, with PREFIX."
  (remove-if (lambda (line) (uiop:string-prefix-p prefix (string-left-trim " " line)))
             (uiop:read-file-lines (monitoring-file name))))

(test all-that-is-asked-for-is-told
  (let ((told (told-names)))
    (dolist (name '("rules.yml" "rules-test.yml" "dashboard.json"))
      (let ((names (remove-duplicates (names-in (format nil "~{~A~%~}" (file-lines name "#")))
                                      :test #'string=)))
        (is (< 8 (length names)) "~A has hardly a name in it" name)
        (dolist (asked names)
          (is (member asked told :test #'string=) "~A asks for ~A, which nobody tells" name
              asked))))))

(defun members-named (object name)
  "All values of members called NAME in OBJECT, JSON as PARSE-JSON returns it."
  (typecase object
    (string '())
    (vector (loop for item across object append (members-named item name)))
    (cons (loop for (key . value) in object
                when (equal key name) collect value
                append (members-named value name)))))

(test the-dashboard-is-whole
  "Panels with ids and places of their own, variables that are there."
  (let* ((dashboard (clgrpc.base:parse-json (uiop:read-file-string
                                             (monitoring-file "dashboard.json"))))
         (panels (cdr (assoc "panels" dashboard :test #'string=)))
         (ids (map 'list (lambda (panel) (cdr (assoc "id" panel :test #'string=))) panels))
         (places (members-named panels "gridPos"))
         (variables (members-named (cdr (assoc "templating" dashboard :test #'string=)) "name")))
    (is (<= 20 (length ids)))
    (is (= (length ids) (length (remove-duplicates ids))))
    (is (= (length ids) (length (remove-duplicates places :test #'equal))))
    (is (every (lambda (place)
                 (<= (+ (cdr (assoc "x" place :test #'string=))
                        (cdr (assoc "w" place :test #'string=)))
                     24))
               places))
    (is (equal '("datasource" "job" "instance" "method") variables))
    (dolist (expression (members-named panels "expr"))
      (is (search "$job" expression) "~A does not heed the job that was chosen" expression)
      (is (search "$instance" expression) "~A does not heed the instance" expression))
    (is (find "heatmap" (members-named panels "type") :test #'string=))))
