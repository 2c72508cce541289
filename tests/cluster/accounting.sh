# Slurm's accounting on the head: MariaDB with an empty database, and slurmdbd. Uses the functions of `cluster`.

# A database without users and without a network: only processes of the head reach its socket.
# slurmdbd could make the database itself, but its second connection fails with MariaDB 11.8.9's library.
start_accounting() {
    # shellcheck disable=SC2016
    on_head bash -euc '
        install -d -o mysql -g mysql /run/mysqld /run/mysqld/data
        setsid mariadbd --no-defaults --user=mysql --datadir=/run/mysqld/data --socket=/run/mysqld/mysqld.sock \
            --pid-file=/run/mysqld/mariadbd.pid --skip-networking --skip-grant-tables --performance-schema=off \
            --innodb-log-file-size=8M --innodb-buffer-pool-size=32M --innodb-flush-method=fsync \
            </dev/null >/var/log/mariadbd.log 2>&1 &
        (umask 077 && printf "%s\n" AuthType=auth/munge DbdHost=head SlurmUser=slurm StorageType=accounting_storage/mysql \
            StorageHost=localhost StorageUser=slurm PidFile=/run/slurm/slurmdbd.pid LogFile=/var/log/slurm/slurmdbd.log \
            >/etc/slurm/slurmdbd.conf && chown slurm: /etc/slurm/slurmdbd.conf)'
    await database_answers || die "MariaDB does not answer: $(tail -n 5 "$state/machines/head/log/mariadbd.log")"
    on_head mariadb -e 'create database slurm_acct_db'
    on_head slurmdbd
    on_head sh -c 'printf "%s\n" AccountingStorageType=accounting_storage/slurmdbd AccountingStorageHost=head >>/etc/slurm/slurm.conf'
    await on_head sacctmgr -i add cluster test &>/dev/null ||
        die "slurmdbd does not answer: $(tail -n 5 "$state/machines/head/log/slurm/slurmdbd.log")"
    on_head rm -f /var/lib/slurm/slurmctld/clustername # has a number other than slurmdbd's, which 24.11 compares
    restart head
    await all_idle || die "the nodes did not become idle"
}

database_answers() {
    on_head mariadb -e 'select 1' &>/dev/null
}

stop_accounting() {
    on_head sed -i '/^AccountingStorage/d' /etc/slurm/slurm.conf
    restart head
    # shellcheck disable=SC2016
    on_head bash -euc '
        for file in /run/slurm/slurmdbd.pid /run/mysqld/mariadbd.pid; do
            pid=$(<"$file")
            kill "$pid"
            while [[ -e /proc/$pid ]]; do sleep 0.02; done
        done
        rm -rf /run/mysqld /etc/slurm/slurmdbd.conf'
    await all_idle || die "the nodes did not become idle"
}

accounting() {
    need_root
    need_machine head
    [[ $# == 1 ]] || refuse_usage '"accounting" needs "on" or "off"'
    nodes=$(($(machines | wc -l) - 1))
    case $1 in
        on)
            # shellcheck source=/dev/null
            source "$state/settings"
            [[ -z $root ]] || die "a cluster with another root has no slurmdbd"
            ! on_head test -e /run/mysqld || die "the accounting is on"
            start_accounting
            ;;
        off) stop_accounting ;;
        *) refuse_usage "\"accounting\" needs \"on\" or \"off\", not \"$1\"" ;;
    esac
}
