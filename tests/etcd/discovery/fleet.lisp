;;;; A fleet of processes behind a name, each of which is replaced by another while calls are made
;;;; at a fixed rate. `scripts/storm fleet` does the same with ten, and longer.

(in-package #:clgrpc.tests.discovery)

(defun start-members (store number)
  "NUMBER new servers, programs that are registered as \"bench\"."
  (let ((programs (loop repeat number
                        collect (support:start-program
                                 (support:testee-program)
                                 (list "serve" "bench" "--listen" "127.0.0.1:0"
                                       "--register" (target store "bench"))))))
    (dolist (program programs programs)
      (loop for line = (support:program-line program)
            until (or (null line) (uiop:string-prefix-p "registered as bench/" line))
            finally (is-true line)))))

(test a-rolling-restart-fails-no-call
  "Three servers are replaced one after another; the new ones listen on other ports. No call fails,
though none is tried again by a policy."
  (with-store (store)
    (let ((members '()))
      (unwind-protect
           (progn
             (setf members (start-members store 3))
             (support:with-program (client (support:testee-program) "storm-client"
                                           (target store "bench") "--rate" "500" "--seconds" "5"
                                           "--timeout" "5" "--balance" "round_robin")
               (is (equal "ready" (support:program-line client)))
               (let ((old members))
                 (setf members (append (start-members store 3) old))
                 (dolist (program old)
                   (is (eql 0 (support:terminate-program program)))))
               (let ((report (clgrpc.base:parse-json (support:program-line client))))
                 (flet ((figure (name) (cdr (assoc name report :test #'string=))))
                   (is (= 2500 (figure "calls")))
                   (is (= 0 (figure "failed")) "~A" (figure "failures"))
                   (is (= 0 (figure "lost")))))))
        (mapc #'support:stop-program members)))))

(test the-shell-finds-servers
  "`clgrpc call etcd://…/NAME` finds what `clgrpc serve --register` has registered."
  (with-store (store)
    (let ((clgrpc (support:clgrpc-program)))
      (flet ((output (&rest arguments)
               (uiop:run-program (cons clgrpc arguments) :output :string :error-output :output
                                                         :ignore-error-status t)))
        (support:with-program (server clgrpc "serve" "greeter" "--listen" "127.0.0.1:0"
                                      "--register" (target store) "--weight" "3" "--zone" "a")
          (is (uiop:string-prefix-p "listening on " (support:program-line server)))
          (is (uiop:string-prefix-p "registered as greeter/" (support:program-line server)))
          (is (search "Hello, Ada" (output "call" (target store) "helloworld.Greeter/SayHello"
                                           "-d" "{\"name\": \"Ada\"}")))
          (let ((endpoint (first (discovery:list-endpoints "greeter" :etcd *etcd*))))
            (is (= 3 (discovery:endpoint-weight endpoint)))
            (is (string= "a" (discovery:endpoint-zone endpoint)))))
        (is (search "names no server" (output "call" "etcd://127.0.0.1:1/" "a.B/C")))
        (is (search "does not give the address of etcd"
                    (output "serve" "greeter" "--register" "etcd:///greeter")))))))
