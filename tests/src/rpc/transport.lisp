;;;; The contract of transports: the checks when an end is declared, and operations that it lacks.

(in-package #:clgrpc.tests.rpc)

(defun essential-operations (end)
  "A plist of the operations that an END must have, since they have no default."
  (loop for row in rpc::*contract*
        for key = (intern (string (rpc::contract-row-name row)) '#:keyword)
        unless (or (rpc::contract-row-default row)
                   (not (member (rpc::contract-row-end row) (list nil end))))
          append (list key '#'list)))

(defun end-with (end &rest operations)
  "Expand the declaration of an END with all operations without a default, changed by OPERATIONS: an
operation that is nil there is omitted."
  (let ((given (essential-operations end)))
    (loop for (key function) on operations by #'cddr
          do (if function
                 (setf (getf given key) function)
                 (remf given key)))
    (macroexpand-1 `(rpc:define-transport-end **nowhere** (,end) ,@given))))

(test ends-are-whole
  (finishes (end-with :client))
  (finishes (end-with :server :reply '#'list))
  (signals error (end-with :client :send nil))
  (signals error (end-with :server :reply nil))
  (signals error (end-with :client :reply '#'list) "REPLY is for handlers only.")
  (signals error (end-with :client :sing '#'list)))

(test ends-share-operations
  (let ((everything (essential-operations :client))
        (name (gensym "END")))
    (remf everything :peer)
    (eval `(rpc:define-transport-end ,name (nil)
             :peer (constantly "shared") ,@everything))
    (flet ((peer (&rest own)
             (let ((end (gensym "END")))
               (eval `(rpc:define-transport-end ,end (:client :like ,name) ,@own))
               (funcall (rpc::operations-peer (symbol-value end)) nil))))
      (is (equal "shared" (peer)))
      (is (equal "own" (peer :peer '(constantly "own"))) "Operations that an end declares itself
have priority."))))

(test operations-take-what-the-contract-says
  (flet ((checked (&rest operations)
           (rpc::checked-operations (apply #'rpc::make-operations operations))))
    (finishes (checked :send (lambda (call message wait-p compress)
                               (list call message wait-p compress))))
    (finishes (checked :send #'list))
    (signals error (checked :send (lambda (call message) (list call message))))
    (signals error (checked :peer (lambda (call more) (list call more))))))

(test operate-knows-the-contract
  (finishes (macroexpand-1 '(rpc:operate room call)))
  (signals error (macroexpand-1 '(rpc:operate room call 1)))
  (signals error (macroexpand-1 '(rpc:operate rooms call))))

(test what-the-other-end-has-says-so
  (let ((call (new-call)))
    (dolist (function (list #'rpc::not-for-clients #'rpc::not-for-handlers #'rpc::not-carried))
      (signals clgrpc.base:misuse (funcall function call 1 2)))))

(test rows-are-told
  (let ((table (rpc::contract-table)))
    (is (= (length table) (length rpc::*contract*)))
    (is (equal '("`(peer call)`" "any" "both" "none"
                 "The peer's address, a string, or nil before the call has a peer.")
               (find "`(peer call)`" table :key #'first :test #'string=)))))
