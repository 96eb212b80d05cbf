;;;; Options of servers that systems add.

(in-package #:clgrpc.tests.command)

(defun call-with-groups-alone (function)
  "Call FUNCTION while no system has added a group."
  (with-changed ((command::**groups** '())) (funcall function)))

(test groups-work-on-one-server-in-turn
  "Each group gets the command line: for observers, those that come before its own; around a server,
the inner function. A group of the same system replaces an earlier one."
  (call-with-groups-alone
   (lambda (&aux (told '()))
     (flet ((add (system &rest observers)
              (command:add-group system '()
                                 (lambda (server given function)
                                   (push (list system server given) told)
                                   (funcall function (list system)))
                                 :observers (and observers
                                                 (lambda (given)
                                                   (push (list system (getf given :observer)
                                                               (getf given :port))
                                                         told)
                                                   observers)))))
       (dolist (system '("c" "a" "b"))
         (add system))
       (add "a" :first)
       (add "c" :last)
       (is (equal '(:own :first :last)
                  (command:observers-of-groups '(:observer (:own) :port 1))))
       (is (equal '(("c" (:own :first) 1) ("a" (:own) 1)) (shiftf told '())))
       (is (equal '("b" "a" "c")
                  (command:call-with-groups :server '(:port 1) #'identity)))
       (is (equal '(("c" :server (:port 1)) ("a" :server (:port 1)) ("b" :server (:port 1)))
                  told))))))
