(in-package #:clgrpc.tests.report)

(defun member-at (json &rest path)
  "The value in JSON at the end of the names PATH."
  (reduce (lambda (object name) (cdr (assoc name object :test #'string=))) path
          :initial-value json))

(test figures-beside-ghz
  (let* ((run (sample-run :seconds 10 :limited "one core was not enough"))
         (json (report:run-json run)))
    (is (= (report:figure-value "p99.9" run)
           (rational (member-at json "clgrpc" "figures" "p99.9"))))
    (is (= 500 (member-at json "clgrpc" "figures" "rps")))
    (is (string= "open" (member-at json "clgrpc" "loop")))
    (is (string= "one core was not enough" (member-at json "clgrpc" "limited")))
    (is (= 10 (length (member-at json "clgrpc" "seconds"))))
    (is (equal '("queue" "connect" "send" "wait")
               (mapcar #'car (member-at json "clgrpc" "stages"))))
    (is (= 30 (member-at (aref (member-at json "clgrpc" "statuses") 1) "count")))))

(test indented-json
  (is (string= (format nil "{~%  \"a\": [~%    {~%      \"b\": [1,2]~%    },~%    \"c\"~%  ],~%  ~
                            \"d\": {}~%}")
               (report::pretty-json '(("a" . #((("b" . #(1 2))) "c")) ("d"))))))
