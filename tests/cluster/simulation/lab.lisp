;;;; What the scenarios share: a store in memory that is a host's, and what goes wrong with it.

(in-package #:clgrpc.tests.simulation)

(define-condition wrong-cluster (error)
  ((text :initarg :text :reader wrong-cluster-text)) ; what is not as it should be
  (:report (lambda (condition stream) (write-string (wrong-cluster-text condition) stream))))

(defun complain (control &rest arguments)
  (error 'wrong-cluster :text (format nil "~?" control arguments)))

(defstruct (lab (:copier nil))
  "What a seed says of the store."
  (simulation nil)
  (chance nil)
  (store nil)                           ; the host of the engine
  (engine nil)                          ; its data, while that lasts
  (losing nil)                          ; the data goes with the next start
  (lost nil)                            ; data was lost
  (on-loss nil))                        ; a function of the lab, called then

(defparameter *options* '(:latency (1/10000 4/1000) :losses 5)
  "What the simulations of clusters are made with.")

(defun boot-store (lab)
  "Serve the data of LAB, or none if they are lost."
  (when (or (null (lab-engine lab)) (shiftf (lab-losing lab) nil))
    (when (lab-engine lab)
      (memory:close-engine (lab-engine lab))
      (setf (lab-lost lab) t)
      (when (lab-on-loss lab) (funcall (lab-on-loss lab) lab)))
    (setf (lab-engine lab) (memory:make-engine)))
  (grpc:start-server (lab-engine lab) :listen "store:2379"))

(defun add-store (lab)
  (setf (lab-store lab) (sim:add-host "store" (lambda () (boot-store lab)))))

(defun part-for-a-while (lab host other)
  "Let nothing through between HOST and OTHER for at most nine seconds."
  (sim:partition host other)
  (sim:at (/ (sim:between (lab-chance lab) 10 9000) 1000) (lambda () (sim:heal host other))))

(defun end-leases (lab)
  "End all leases of the store, though they were renewed, as a former leader of etcd does that has
hung and goes on (etcd's issue 15247)."
  (when (sim:host-up (lab-store lab))
    (sim:on-host ((lab-store lab))
      (let ((etcd (memory:connect (lab-engine lab))))
        (dolist (number (etcd:list-leases etcd))
          (etcd:revoke-lease (etcd:lease-by-number etcd number)))
        (etcd:close-etcd etcd)))))

(defun choose-store-fault (lab clients &key (kinds '(:killed :lost :lost :stopped :cut :early)))
  "Let something go wrong with the store, by which CLIENTS, hosts, are connected to it."
  (let ((chance (lab-chance lab)) (store (lab-store lab)))
    (ecase (sim:pick chance kinds)
      (:killed (sim:restart-host store :down (sim:pick chance '(1/100 1 4 12))))
      (:stopped (sim:restart-host store :down (sim:pick chance '(1/100 1 4)) :drain 1))
      (:lost (when (sim:restart-host store :down (sim:pick chance '(1/100 1 4 12)))
               (setf (lab-losing lab) t)))
      (:early (end-leases lab))
      (:cut (dolist (client clients) (sim:cut store client))))))

(defun check-logged (simulation)
  (loop for entry across (sim::history-entries (sim::simulation-history simulation))
        do (when (or (eq :error (first (sim::entry-arguments entry)))
                     (eq :task-error (sim::entry-event entry)))
             (complain "This was logged: ~A" (sim::entry-line entry)))))

(defun finish-lab (lab)
  "End the store, and see that nothing is left."
  (let ((simulation (lab-simulation lab)))
    (sim:stop-host (lab-store lab) :drain 0)
    (memory:close-engine (lab-engine lab))
    (unless (sim:wait-until (lambda () (null (sim::simulation-tasks simulation))) :timeout 200)
      (complain "Tasks are left: ~S" (sim::simulation-tasks simulation)))
    (check-logged simulation)))
