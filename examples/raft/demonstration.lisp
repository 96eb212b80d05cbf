;;;; Three nodes over loopback, each with a journal in a directory: (SHOW).

(in-package #:clgrpc.examples.raft)

(defun serve-node (node listen)
  (grpc:start-server (node-services node) :listen listen))

(defun await-leader (nodes)
  "The one of NODES that leads, once one does."
  (loop thereis (find :leader nodes :key #'node-role)
        do (loop:world-sleep 1/100)))

(defun make-shown-node (name names directory)
  (make-node name names (open-file-disk (merge-pathnames (format nil "~A.journal" name) directory))
             :most-entries 20))

(defun show (directory)
  "Have three nodes elect a leader and store values, with their journals in DIRECTORY, end the
leader, store more, and have it come back from its journal; say what happens."
  (let* ((names '("A" "B" "C")) (addresses '()) (client nil)
         (nodes (loop for name in names collect (make-shown-node name names directory)))
         (servers (loop for node in nodes collect (serve-node node "127.0.0.1:0"))))
    (flet ((say (control &rest arguments) (format t "~?~%" control arguments))
           (end (place)
             (grpc:stop-server (elt servers place) :drain 0)
             (stop-node (elt nodes place))))
      (unwind-protect
           (progn
             (setf addresses (mapcar (lambda (name server) (cons name (grpc:server-address server)))
                                     names servers))
             (dolist (node nodes) (start-node node addresses))
             (setf client (make-client addresses))
             (let* ((leader (await-leader nodes)) (place (position leader nodes)))
               (dotimes (i 50) (change client :append "sum" (format nil "~D" (mod i 10))))
               (say "50 commands: ~A" (fetch client "sum"))
               (end place)
               (change client :put "sum" "another leads")
               (say "after the end of the leader: ~A" (fetch client "sum"))
               (let* ((name (node-name leader)) (node (make-shown-node name names directory)))
                 (setf (elt nodes place) node
                       (elt servers place) (serve-node node (cdr (assoc name addresses
                                                                        :test #'string=))))
                 (start-node node addresses)
                 (loop until (string= "another leads" (gethash "sum" (store-pairs (node-store node))
                                                               ""))
                       do (loop:world-sleep 1/100))
                 (say "it is back from its journal, and has what it missed"))))
        (when client (close-client client))
        (dotimes (place 3) (unless (node-ended (elt nodes place)) (end place)))))))
