;;;; Routes and executions.

(in-package #:clgrpc.tests.server)

(test executions
  "The valid values of :execution, and the result for each method."
  (flet ((execution (execution) (server::execution-of execution 'lab.bench:ask)))
    (is (eq :inline (execution :inline)))
    (is (eq :blocking (execution :blocking)))
    (is (eq :auto (execution :auto)))
    (is (eq :inline (execution '((lab.bench:ask . :inline)))))
    (is (eq :auto (execution '((lab.bench:chat . :inline)))))
    (is (eq :auto (execution '())))
    (signals grpc:misuse (execution :sometimes))
    (signals grpc:misuse (execution '((lab.bench:ask . :sometimes)))))
  (signals grpc:misuse (start-probe '() :execution '((lab.bench:ask . 5))))
  (signals grpc:misuse (start-probe '() :execution '((car . :inline)))))

(test an-execution-is-for-all-or-by-method
  (let ((table (serving:make-routes :us (list (make-probe))
                                    (server::route-maker '((lab.bench:ask . :inline))))))
    (flet ((execution (path)
             (server::route-execution (gethash path (serving:route-table-routes table)))))
      (is (eq :inline (execution "/lab.Bench/Ask")))
      (is (eq :auto (execution "/lab.Bench/Chat"))))))

(test quick-calls-count-from-the-last-slow-one
  "A method that has overstayed runs on the loop again after enough quick calls in a row; quick
calls before it overstayed do not count."
  (let* ((table (serving:make-routes :us (list (make-probe)) (server::route-maker :auto)))
         (route (gethash "/lab.Bench/Ask" (serving:route-table-routes table))))
    (flet ((are-quick (count) (dotimes (i count) (server::note-duration route 1000))))
      (are-quick (- server::+quick-calls+ 1))
      (server::note-overstay route)
      (server::late-handler-ended route)
      (are-quick (- server::+quick-calls+ 1))
      (is-true (server::route-blocks route))
      (are-quick 1)
      (is (null (server::route-blocks route))))))

(test remembered-routes
  "A path field remembers its route for one server and one epoch only."
  (let* ((service (make-probe))
         (table (serving:make-routes :one (list service) #'server::make-server-route))
         (other (serving:make-routes :two '() #'server::make-server-route))
         (field (hpack:string-field ":path" "/lab.Bench/Ask"))
         (route (server::route-of table field)))
    (is (eq service (serving::route-service route)))
    (is (eq route (server::route-of table field)))
    (is (null (server:route-method (server::route-of other field))))
    (is (eq route (server::route-of table field)))
    (let ((unknown (hpack:string-field ":path" "/x")))
      (is (null (server:route-method (server::route-of table unknown))))
      (is (eq (server::route-of table unknown) (server::route-of table unknown))))
    (is (search "/lab.Bench/Ask" (princ-to-string route)))
    (is (search "unknown" (princ-to-string (server::route-of other field))))))

(test two-servers-one-service
  "One service object may be served by several servers, each with its own execution."
  (let ((service (make-probe :ask #'double)))
    (let ((one (grpc:start-server service :execution :inline))
          (two (grpc:start-server (list service))))
      (unwind-protect
           (dolist (server (list one two))
             (grpc:with-channel (channel (grpc:server-address server))
               (is (= 2 (number-of (ask channel (note 1)))))))
        (grpc:stop-server one)
        (grpc:stop-server two)))))
