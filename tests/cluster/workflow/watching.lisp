;;;; Watches of workflows: what a change costs, and watches whose threads are unwound.

(in-package #:clgrpc.tests.workflow)
(in-suite :clgrpc.workflow)

(defun call-deleting (function id)
  "Call FUNCTION; before a payload of the workflow ID is read, that is deleted."
  (sb-int:encapsulate 'workflow::fetch-payload 'delete
                      (lambda (function node state key)
                        (when (string= id (pb:workflow-state-id state))
                          (workflow:delete-workflow node id))
                        (funcall function node state key)))
  (unwind-protect (funcall function)
    (sb-int:unencapsulate 'workflow::fetch-payload 'delete)))

(defun call-missing-one (function)
  "Call FUNCTION; the first payload that is read has gone since its state was read."
  (let ((missed nil))
    (sb-int:encapsulate 'workflow::fetch-payload 'miss
                        (lambda (function &rest arguments)
                          (if (shiftf missed t)
                              (apply function arguments)
                              (make-octets 0))))
    (unwind-protect (funcall function)
      (sb-int:unencapsulate 'workflow::fetch-payload 'miss))))

(defun do-a-task (node result)
  "Do the task \"a\" with RESULT."
  (report node (first (claim node (open-a-session node) '("a"))) result))

(test a-result-that-is-deleted-is-not-an-empty-one
  "A workflow is deleted after its state was read and before its result is: its user learns that it
has gone, and its parent that it was deleted."
  (with-idle-node (node 1000000)
    (let ((large (make-string 1000 :initial-element #\a)))
      (start-workflow node "w" '("a"))
      (do-a-task node large)
      (flet ((result ()
               (octets-string (pb:get-workflow-state-reply-result
                               (workflow-state node "w" :result t)))))
        (is (equal large (result)))
        ;; of a workflow that has begun again the state is read again
        (is (equal large (call-missing-one #'result))))
      (signals workflow-not-found
        (call-deleting (lambda () (workflow-state node "w" :result t)) "w"))
      (start-workflow node "p" '((:parallel ("a"))))
      (workflow::do-due node)
      (do-a-task node large)
      (call-deleting (lambda () (workflow::do-due node)) "p.1.0")
      (let ((state (state-of node "p")))
        (is (eq :failed (pb:workflow-state-status state)))
        (is (search "deleted" (pb:workflow-state-reason state)))))))
