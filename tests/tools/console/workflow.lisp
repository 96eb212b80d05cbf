;;;; The page of workflows: what it is made of and asks for, that it only shows, and what a browser
;;;; makes of it.

(in-package #:clgrpc.tests.console)

(defun call-with-workflow-page (function)
  "Call FUNCTION with a console that shows the workflows of a node, a server of it, and the node."
  (let* ((engine (memory:make-engine)) (etcd (memory:connect engine)))
    (unwind-protect
         (let ((node (workflow:make-workflow-service etcd)))
           (unwind-protect
                (with-shown (console server channel)
                  (workflow-console:show-workflows console node)
                  (funcall function console server node))
             (workflow:close-workflow-service node)))
      (etcd:close-etcd etcd)
      (memory:close-engine engine))))

(defmacro with-workflow-page ((console server node) &body body)
  `(call-with-workflow-page (lambda (,console ,server ,node)
                              (declare (ignorable ,node))
                              ,@body)))

(defun fetch-workflows (console server what)
  (fetch server (format nil "/console/workflows/~A" what) :headers (bearer console)))

(test the-page-of-workflows-is-one-file
  (with-workflow-page (console server node)
    (is (= 401 (fetch server "/console/workflows/")))
    (is (= 401 (fetch server "/console/workflows/list")))
    (multiple-value-bind (status headers body) (fetch-workflows console server "")
      (is (= 200 status))
      (is (string= "text/html; charset=utf-8" (header "content-type" headers)))
      (is (search "default-src 'none'" (header "content-security-policy" headers)))
      (is (null (search "://" body)) "it names other places")
      (is (null (search "{{" body)) "a part is missing"))
    (is (= 404 (fetch-workflows console server "other")))))

(test what-the-page-of-workflows-asks-for
  "Lists, one workflow without what it was given, schedules; what is wrong in a request is told."
  (with-workflow-page (console server node)
    (workflow:start-workflow node "w1" '((:signal "x")) :type "letter" :input "a secret")
    (workflow:start-workflow node "w2" '((:signal "x")))
    (workflow:create-schedule node "nightly" '((:signal "x")) :cron "0 3 * * *")
    (flet ((asked (what request)
             (multiple-value-bind (status headers body)
                 (fetch-workflows console server (format nil "~A?request=~A" what request))
               (declare (ignore headers))
               (values status body))))
      (multiple-value-bind (status body) (asked "list" "%7B%22type%22:%22letter%22%7D")
        (is (= 200 status))
        (is (search "\"w1\"" body))
        (is (null (search "\"w2\"" body))))
      (multiple-value-bind (status body)
          (asked "show" "%7B%22id%22:%22w1%22,%22input%22:true%7D")
        (is (= 200 status))
        (is (search "\"STARTED\"" body))
        (is (null (in-json (parse-json body) "input"))))
      (is (search "0 3 * * *" (nth-value 1 (asked "schedules" "%7B%7D"))))
      (is (= 404 (asked "show" "%7B%22id%22:%22nobody%22%7D")))
      (is (= 400 (asked "list" "%7B")))
      (is (= 400 (asked "list" "%7B%22startedFromUnixMs%22:-1%7D"))))))

(test a-browser-shows-workflows
  "What users have said stays text, the page fits into windows of 1280 and 400, and can be read."
  (with-workflow-page (console server node)
    (workflow:start-workflow node "w1" '((:parallel ((:signal "x")) ((:signal "y"))) (:signal "z"))
                             :type "letter")
    (workflow:start-workflow node "w2" '((:signal "x"))
                             :type "<img src=x onerror=window.hacked=1>")
    (workflow:cancel-workflow node "w2" :reason *evil*)
    (workflow:create-schedule node "nightly" '((:signal "x")) :cron "0 3 * * *")
    (let ((seen (parse-json (support:look-with-browser "tests/tools/console/workflows.mjs"
                                                       (console:console-url console server)
                                                       (or (uiop:getenvp "CLGRPC_PICTURES") "")))))
      (flet ((seen (name) (in-json seen name)))
        (is (equalp #() (seen "errors")))
        (is (equalp #("w2" "w1.1.1" "w1.1.0" "w1") (sort (copy-seq (seen "listed")) #'string>)))
        (is (equalp #("w2") (seen "cancelled")))
        (is (search "child started" (seen "history")))
        (is (search "w1.1.1" (seen "steps")))
        (is (search "nightly" (seen "schedules")))
        (is (search "not you</script><img src=x" (seen "reason")))
        (is (eql 0 (seen "foreign")))
        (is-true (eq :false (seen "hacked")))
        (is (equalp #() (seen "faint")))
        (loop for (how . excess) in (seen "wide")
              do (is (<= excess 0) "The page is wider than the window: ~A" how))))))
